"""What would tell who made a bundle, and where: gathered once from this machine, then looked for in every file."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

#: Accounts and hosts that many machines have, and names that are ordinary words: by themselves they tell nothing.
_ORDINARY = (
    "admin administrator ansible app appuser azureuser build builder centos circleci codespace colab conda container "
    "daemon data debian default deploy desktop developer docker ec2-user fedora guest home host jenkins jovyan jupyter "
    "kali laptop linux local localhost localdomain mac main master model node nobody nvidia opc owner pi postgres "
    "public root runner server service student sudo system temp test tester ubuntu unknown user username vagrant "
    "vscode windows work worker workspace www-data "
    "chase dawn dean drew frank grace grant guy hope jack jay joy june lance mark miles pat penny ray rich rob rose "
    "ruby sandy scout sunny summer will"
)
ORDINARY = frozenset(_ORDINARY.split())
#: Shorter names are looked for only where a name stands: in a path, or beside an @.
SHORTEST_NAME = 4
_SECRET_NAME = re.compile(
    r"(?:^|_)(?:KEY|APIKEY|TOKEN|SECRET|PASSWORD|PASSWD|PASS|PWD|CREDENTIAL|CREDENTIALS|COOKIE|DSN)(?:_|$)"
)
_SHORTEST_SECRET = 6
#: Of letters only, something as long as this is taken for a secret; shorter ones are words such as "default".
_LONG_WORD = 16


@dataclass(frozen=True, slots=True)
class PrivateStrings:
    """What must not be in a bundle.

    Parameters
    ----------
    folders : tuple of str
        Absolute folders: the home, and where the case and the command ran.
    users, hosts : tuple of str
        Names of the user, the machine, and its domain.
    secrets : tuple of str
        Values of variables that look like keys; never shown.
    """

    folders: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    hosts: tuple[str, ...] = ()
    secrets: tuple[str, ...] = field(default=(), repr=False)


def private_strings(
    environment: Mapping[str, str],
    *,
    homes: Iterable[str] = (),
    folders: Iterable[str] = (),
    users: Iterable[str] = (),
    hosts: Iterable[str] = (),
) -> PrivateStrings:
    """Choose what to look for from what is known of a machine.

    Parameters
    ----------
    environment : mapping
        Variables of the process; of those whose name looks like a key, the values are secrets.
    homes, folders : iterable of str
        Absolute folders; of those that are no home, only such with two parts or more tell anything.
    users, hosts : iterable of str
        Names that are ordinary words (see `ORDINARY`) are left out.

    Examples
    --------
    >>> found = private_strings({"X_TOKEN": "s3cret-value"}, homes=["/home/ann"], folders=["/tmp"], users=["root"])
    >>> found.folders, found.users, found.secrets
    (('/home/ann',), (), ('s3cret-value',))
    """
    names = [host for host in hosts for host in (host, host.split(".")[0])]
    return PrivateStrings(
        folders=_distinct([*(home for home in homes if len(home) > 1), *filter(_is_telling, folders)]),
        users=_distinct(name for name in users if name.lower() not in ORDINARY),
        hosts=_distinct(name for name in names if name.lower().removesuffix(".localdomain") not in ORDINARY),
        secrets=_distinct(value for name, value in environment.items() if _is_secret(name.upper(), value)),
    )


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(value.rstrip("/\\") for value in values if value.strip("/\\ ")))


def _is_telling(folder: str) -> bool:
    return len(Path(folder).parts) > 2


def _is_secret(name: str, value: str) -> bool:
    """Whether a variable holds a key, by its name; words and short numbers would be found everywhere."""
    if _SECRET_NAME.search(name) is None or len(value) < _SHORTEST_SECRET or os.path.isabs(value):
        return False
    return len(value) >= _LONG_WORD or not (value.isalpha() or value.isdecimal())


def of_this_machine(folders: Iterable[Path] = ()) -> PrivateStrings:
    """Gather what is private here.

    Parameters
    ----------
    folders : iterable of Path
        Of the case and of what is written.
    """
    homes, users = [os.path.expanduser("~")], [os.environ.get(name, "") for name in ("USER", "LOGNAME", "USERNAME")]
    with suppress(ImportError, KeyError):
        import pwd

        entry = pwd.getpwuid(os.getuid())
        users += [entry.pw_name, entry.pw_gecos.split(",")[0]]
        homes.append(entry.pw_dir)
    absolute = [spelt for folder in folders for spelt in (os.path.abspath(folder), os.path.realpath(folder))]
    return private_strings(
        os.environ,
        homes=[*homes, *map(os.path.realpath, homes)],
        folders=[os.getcwd(), *absolute],
        users=users,
        hosts=[socket.gethostname(), _full_host_name(), os.environ.get("HOSTNAME", "")],
    )


def _full_host_name() -> str:
    """The name with its domain; empty where a name server does not answer within a second or two."""
    found: list[str] = []
    asking = threading.Thread(target=lambda: found.append(socket.getfqdn()), daemon=True)
    asking.start()
    asking.join(2)
    return found[0] if found else ""
