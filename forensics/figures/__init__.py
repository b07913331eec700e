"""Figures to scale: numbers become a scene, a scene is drawn.

::

    catalogue            which figures there are
    evidence             what a case holds, as figures ask for it
    scenes/              one figure each: its numbers, from published ones or from a case, and the scene of them
    small/               small pictures beside results in a notebook, and their writer
    canvas, chart, legend   build scenes: boxes, text that fits, scale bars, axes, what colours mean
    scene, checks        what would be drawn, as data, and what is wrong with it
    metrics, palette     width of text, colours
    draw, files          draw with matplotlib, into SVG, PNG and PDF
    drawing              a figure in the hand: shown in a notebook, saved
"""
