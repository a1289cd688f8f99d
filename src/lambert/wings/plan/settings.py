"""The settings of `lambert plan`."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from lambert.core.errors import UsageError
from lambert.core.registry import nearest
from lambert.core.settings import check
from lambert.wings.plan.costs.device_file import DeviceFile, read_device
from lambert.wings.plan.costs.devices import DEVICES, JITTER, LINKS

AUTO = "auto"
_THIS_MACHINE = ("cpu", "gpu", "cuda", "mps", "local")
"""Names by which a user may mean `AUTO`."""
_IMAGE = re.compile(r"[a-zA-Z0-9][\w.-]*(:\d+)?(/[\w.-]+)*(:[\w.-]+)?(@sha256:[0-9a-f]{64})?", re.ASCII)
_CLAIM = re.compile(r"(?=.{1,253}$)[a-z0-9]([a-z0-9.-]*[a-z0-9])?")
_KINDS = {
    "image": "a container image, such as registry.example.com/lambert:1.0",
    "claim": "a volume claim: lower-case letters, digits, - and .",
}
_SECONDS = {"m": 60.0, "h": 3600.0, "d": 86_400.0}


@dataclass(frozen=True, slots=True)
class PlanConfig:
    """Predicts the time, memory, energy and cost of a run of pretrain or finetune before it is started."""

    recipe: Annotated[Path, Parameter(parse=False)] = Path()
    """TOML file: the recipe of a run of pretrain or finetune."""
    set: tuple[str, ...] = ()
    """Settings that override those of the recipe, as in train.batch_size=512."""
    device: str = AUTO
    """auto (this machine's device, which is measured first), or names from the table of docs/plan.md in upper or lower
    case, separated by commas, such as A100-80GB,H100. A name that ends with .toml is a file with the table [device]."""
    devices: int | None = None
    """Number of devices. Unset: 1, and the table of choices lists other numbers too."""
    nodes: int | None = None
    """Number of machines, which share the devices evenly. Unset: as few as hold the devices."""
    link: str = ""
    """Link between the machines, from the table of docs/plan.md, such as infiniband-200. Empty: ethernet-25."""
    price: str = ""
    """USD for an hour of one device: a number, or one for each device as in A100-80GB=1.8,H100=3. Empty: costs are
    device-hours."""
    budget: str = ""
    """Largest cost of the run, as in 500USD: the fastest choice within it is taken."""
    deadline: str = ""
    """Longest duration of the run, as in 90m, 12h or 3d: the cheapest choice within it is taken."""
    size: str = ""
    """Shape of the encoder if the folder `init` of the recipe does not exist: tiny, mini, small, medium, base or
    large."""
    sequences: int | None = None
    """Sequences of an epoch, if the recipe has train.epochs and its data do not exist."""
    fill: float | None = None
    """Mean length of the sequences as a share of their maximum, if the data do not exist. Unset: measured values of
    Wikipedia for pretrain, of SQuAD for finetune."""
    vocabulary: int = 30_522
    """Pieces of the vocabulary, if neither the corpus nor `init` exists."""
    failures: float | None = None
    """Mean hours between two failures of a machine: the run is simulated with them."""
    checkpoint: float | None = None
    """Minutes of training between two checkpoints in the simulation. Unset: the best interval."""
    restart: float = 120.0
    """Seconds from a failure until training continues."""
    disk: float = 1.0
    """GB per second at which checkpoints are written, while training waits."""
    jitter: float = JITTER
    """Standard deviation of a device's time for an update, as a share of that time. Each update waits for the slowest
    device."""
    slow: float = 1.0
    """One of several devices takes this many times as long as the others, as in 1.2."""
    cluster: Literal["", "slurm", "kubernetes"] = ""
    """Print a script that starts the run on the chosen devices, and the plan on standard error."""
    image: str = ""
    """Container image with Lambert, for `cluster` = kubernetes. Empty: a placeholder that the script marks."""
    claim: str = ""
    """Claim of the volume that all pods can write, for `cluster` = kubernetes. Empty: a placeholder."""
    plot: Path | None = None
    """SVG file to write: time against cost of the choices, with the efficient ones, the chosen one and those over a
    limit. It needs matplotlib (lambert-bert[report])."""
    seconds: float = 60.0
    """Longest time of the measurements of `device` = auto."""
    json: bool = False
    """Print one JSON object."""

    def __post_init__(self) -> None:
        check(
            self, devices="[1, 65536]", nodes="[1, 65536]", sequences="[1, inf)", fill="(0, 1]", vocabulary="[1, inf)",
            failures="(0, 1e9]", checkpoint="(0, 1e9]", restart="[0, 1e9]", disk="(0, 1e6]", seconds="(0, 3600]",
            jitter="[0, 0.3]", slow="[1, 100]",
        )  # fmt: skip
        for name in self.names:
            if name != AUTO and name not in DEVICES and not _is_file(name):
                raise UsageError(f"device = {name!r} is unknown.{_nearest_devices(name)}")
        between = [name for name, link in LINKS.items() if link.between_nodes]
        if self.link and self.link not in LINKS:
            raise UsageError(f"link = {self.link!r} is unknown.{nearest(self.link, between)}")
        if self.link and not LINKS[self.link].between_nodes:
            raise UsageError(
                f"link = {self.link!r} connects devices of a machine: name one between machines, such as {between[1]}."
            )
        if self.link and self.nodes == 1:
            raise UsageError(f"link = {self.link!r} needs several machines, and nodes = 1: omit one of them.")
        if self.nodes and self.devices and self.devices % self.nodes:
            raise UsageError(f"nodes = {self.nodes} cannot share devices = {self.devices} evenly.")
        if self.checkpoint is not None and self.failures is None:
            raise UsageError("checkpoint requires --failures, the mean hours between two failures of a machine.")
        described = [one.name for one in self.files.values()]
        if repeated := [name for name in described if described.count(name) > 1]:
            raise UsageError(f"device = {self.device!r}: several files describe {repeated[0]}. Give each its own name.")
        without = [name for name in self.names if name not in self.prices]
        if without and self.prices:
            lacking = ", ".join(f"{name}=USD" for name in without)
            raise UsageError(
                f"price = {self.price!r} has no price for {' and '.join(without)}: add {lacking} for an hour."
            )
        if without and self.budget:
            raise UsageError(f"budget needs the price of {', '.join(without)}: add --price, USD per device-hour.")
        if self.cluster and (other := [name for name in self.names if name in DEVICES and DEVICES[name].kind == "tpu"]):
            raise UsageError(f"Lambert does not run on {other[0]}: omit --cluster, or name another device.")
        for name, pattern in (("image", _IMAGE), ("claim", _CLAIM)):
            value = getattr(self, name)
            if value and self.cluster != "kubernetes":
                raise UsageError(f"{name} = {value!r} requires --cluster kubernetes.")
            if value and not pattern.fullmatch(value):
                raise UsageError(f"{name} = {value!r} is not a name of {_KINDS[name]}.")
        if self.plot is not None and self.plot.suffix.lower() != ".svg":
            raise UsageError(f"plot = {str(self.plot)!r} must be the name of an SVG file, such as plan.svg.")
        _ = self.largest_cost, self.longest_run  # which raise UsageError

    @property
    def names(self) -> list[str]:
        """The names in `device` as in the table, without duplicates."""
        return list(dict.fromkeys(_as_known(name.strip()) for name in self.device.split(",")))

    @property
    def files(self) -> dict[str, DeviceFile]:
        """The devices of the files, by their names in `device`."""
        return {name: read_device(Path(name)) for name in self.names if _is_file(name)}

    @property
    def prices(self) -> dict[str, float]:
        """USD for an hour, by the names in `device` that have a price, here or in their file."""
        found: dict[str, float] = {}
        for part in filter(None, (part.strip() for part in self.price.split(","))):
            name, _, value = part.rpartition("=")
            name = _as_known(name.strip())
            try:
                usd = float(value)
            except ValueError:
                usd = -1.0
            if not 0 <= usd < 1e6:
                raise UsageError(
                    f"price = {self.price!r} must be USD for an hour, such as 1.8 or A100-80GB=1.8,H100=3."
                )
            if name and name not in self.names:
                raise UsageError(f"price names {name}, which is not in device = {self.device!r}.")
            if found and (not name or name in found):
                raise UsageError(f"price = {self.price!r} has several prices for {name or 'a device'}: give one.")
            found |= dict.fromkeys([name] if name else self.names, usd)
        return {name: one.price for name, one in self.files.items() if one.price is not None} | found

    @property
    def largest_cost(self) -> float | None:
        """USD of `budget`."""
        if not self.budget:
            return None
        match = re.fullmatch(r"\s*\$?(\d+(?:\.\d+)?)\s*(?:USD|\$)?\s*", self.budget, re.IGNORECASE)
        if match is None or not float(match[1]):
            raise UsageError(f"budget = {self.budget!r} must be an amount such as 500USD.")
        return float(match[1])

    @property
    def longest_run(self) -> float | None:
        """Seconds of `deadline`."""
        if not self.deadline:
            return None
        match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([mhd])\s*", self.deadline)
        if match is None or not float(match[1]):
            raise UsageError(f"deadline = {self.deadline!r} must be a duration such as 90m, 12h or 3d.")
        return float(match[1]) * _SECONDS[match[2]]


def _is_file(name: str) -> bool:
    return name.casefold().endswith(".toml")


def _as_known(name: str) -> str:
    """Returns the name of a device as the table writes it, given in any case; other text unchanged."""
    return next((known for known in (AUTO, *DEVICES) if known.casefold() == name.casefold()), name)


def _nearest_devices(name: str) -> str:
    """Returns ' Did you mean ...?' with the devices whose names begin with `name`, or else as `nearest`."""
    if name.casefold() in _THIS_MACHINE:
        return (
            f" {AUTO} is this machine; others are {', '.join(sorted(DEVICES))}, or a file of your own (docs/plan.md)."
        )
    begun = [known for known in DEVICES if known.casefold().startswith(name.casefold())] if name else []
    return f" Did you mean {' or '.join(map(repr, begun))}?" if begun else nearest(name, [AUTO, *DEVICES])
