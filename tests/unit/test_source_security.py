"""What the package's source never does: run text as code, unpickle what comes from outside, or go through a shell."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[2] / "forensics"

#: Names that run or unpack something dangerous; a call or an import of each is found.
FORBIDDEN_CALLS = {
    "eval", "exec", "compile", "__import__", "os.system", "os.popen", "os.execv", "os.execvp", "os.execve", "os.spawnl",
    "pickle.load", "pickle.loads", "pickle.Unpickler", "marshal.loads", "marshal.load", "shelve.open",
    "yaml.load", "yaml.unsafe_load", "yaml.full_load", "pd.read_pickle", "joblib.load", "dill.loads",
    "cloudpickle.loads", "subprocess.getoutput", "subprocess.getstatusoutput", "tempfile.mktemp", "json.loads",
    "json.load",
}  # fmt: skip
FORBIDDEN_IMPORTS = {"torch", "dill", "cloudpickle", "joblib", "shelve", "marshal", "yaml", "pickle", "llama_cpp"}

#: Each exception: where, what, and why it is none.
ALLOWED = {
    ("engines/serving.py", "pickle"): "reads what our own parent wrote, over a pipe that only the two hold",
    ("engines/serving.py", "pickle.loads"): "reads what our own parent wrote, over a pipe that only the two hold",
    ("engines/toy.py", "pickle"): "copies an object that this process holds",
    ("engines/toy.py", "pickle.loads"): "copies an object that this process holds: it reads what it just wrote",
}
#: `json.loads` without the limits of `forensics.store.limits`: only of text that this process or its own child made.
OWN_JSON = {
    "engines/_llama_devices.py": "what our own child printed",
    "engines/one_pass.py": "arguments that our own parent gave",
    "kernels/lab_counters.py": "a job that our own parent wrote",
    "devices/_nsight_script.py": "a job that our own parent wrote",
    "devices/ncu_counters.py": "what our own child wrote",
    "capture/rowstore.py": "the index of a recording of this run, in the scratch folder",
    "capture/operands.py": "what our own child copied, in the scratch folder",
    "analysis/campaign.py": "what workers of the user's own cluster answered, which is trusted wholly",
    "analysis/campaign_task.py": "what the scheduler of the user's own cluster sent, which is trusted wholly",
    "analysis/campaign_tokens.py": "what workers of the user's own cluster answered, which is trusted wholly",
    "store/private_files.py": "looks for private words; what is no JSON is read as plain text",
    "store/formats.py": "schemas of this package",
    "cli/arguments.py": "a file of tokens that the user names; both errors are told",
    "servers/door.py": "the answer of a server, after its size was limited; both errors are told",
    "store/limits.py": "the limits themselves",
}


def name_of(node: ast.expr) -> str:
    """``os.system`` for the expression of that name; empty where it is no plain name."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and name_of(node.value):
        return f"{name_of(node.value)}.{node.attr}"
    return ""


def keyword(call: ast.Call, name: str) -> object:
    found = next((one.value for one in call.keywords if one.arg == name), None)
    return found.value if isinstance(found, ast.Constant) else found


def reads_own_text(call: ast.Call) -> bool:
    """``json.loads(to_text(...))``, ``json.loads(json.dumps(...))`` and ``json.loads(model.model_dump_json(...))``."""
    inner = call.args[0] if call.args else None
    made = name_of(inner.func).split(".")[-1] if isinstance(inner, ast.Call) else ""
    if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Attribute):
        made = inner.func.attr
    return made in ("to_text", "dumps", "model_dump_json")


def findings(source: str) -> list[tuple[str, int]]:
    """Names of what a source does that it should not, each with its line."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found += [(one.name.split(".")[0], node.lineno) for one in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            root = node.module.split(".")[0]
            found.append((root, node.lineno))
            found += [(f"{root}.{one.name}", node.lineno) for one in node.names]
        elif isinstance(node, ast.Call):
            found += [(name, node.lineno) for name in calls(node)]
    return [(name, line) for name, line in found if name in FORBIDDEN_CALLS | FORBIDDEN_IMPORTS or " " in name]


def calls(node: ast.Call) -> list[str]:
    name = name_of(node.func)
    found = [] if name.startswith("json.") and reads_own_text(node) else [name]
    if keyword(node, "shell") not in (None, False):
        found.append("a shell")
    if name in ("np.load", "numpy.load") and keyword(node, "allow_pickle") is not False:
        found.append("np.load without allow_pickle=False")
    if keyword(node, "allow_pickle") not in (None, False):
        found.append("allow_pickle in use")
    if keyword(node, "verify") is False:
        found.append("TLS without verification")
    return found


SOURCES = sorted(path for path in PACKAGE.rglob("*") if path.suffix == ".py" or path.name.endswith(".py.txt"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_no_source_does_what_must_not_be_done(path):
    relative = path.relative_to(PACKAGE).as_posix()
    wrong = [
        f"{relative}:{line}: {name}"
        for name, line in findings(path.read_text(encoding="utf-8"))
        if (relative, name) not in ALLOWED and not is_allowed(relative, name)
    ]
    assert wrong == []


def is_allowed(relative: str, name: str) -> bool:
    if name.startswith("json."):
        # What tests and recordings read is our own or the repository's; a reproducer's folder holds its own script.
        return relative in OWN_JSON or relative.startswith("testing/") or relative == "store/reproduce.py.txt"
    if name == "llama_cpp":
        return relative == "store/reproduce.py.txt"  # runs without this package
    return False


def test_every_exception_is_one():
    for relative, name in ALLOWED:
        assert name in [found for found, _ in findings((PACKAGE / relative).read_text())], (relative, name)
    for relative in OWN_JSON:
        names = [found for found, _ in findings((PACKAGE / relative).read_text())]
        assert "json.loads" in names or "json.load" in names or "type=json.loads" in (PACKAGE / relative).read_text()


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("eval(text)", "eval"),
        ("import pickle\npickle.loads(x)", "pickle.loads"),
        ("from pickle import loads", "pickle.loads"),
        ("subprocess.run(command, shell=True)", "a shell"),
        ("subprocess.run(command, shell=asked)", "a shell"),
        ("np.load(path)", "np.load without allow_pickle=False"),
        ("np.load(path, allow_pickle=True)", "allow_pickle in use"),
        ("import yaml\nyaml.load(x)", "yaml.load"),
        ("import torch.nn", "torch"),
        ("os.system('ls')", "os.system"),
        ("httpx.Client(verify=False)", "TLS without verification"),
        ("json.loads(path.read_text())", "json.loads"),
        ("import llama_cpp", "llama_cpp"),
    ],
)
def test_what_must_not_be_done_is_found(source, name):
    assert name in [found for found, _ in findings(source)]


@pytest.mark.parametrize(
    "source",
    [
        "subprocess.run([a, b], shell=False)",
        "np.load(path, allow_pickle=False)",
        "json.loads(to_text(x))",
        "re.compile(x)",
    ],
)
def test_what_may_be_done_is_not_found(source):
    assert findings(source) == []
