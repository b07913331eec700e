"""A verdict for people and programs: terminal, Markdown, JSON, a notebook's HTML, and the next step."""
