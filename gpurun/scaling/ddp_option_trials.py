"""Other ways to exchange gradients, tried where the exchange keeps a script from scaling.

Each round launches DistributedDataParallel with its defaults and then with each option; the next
round reverses the order. The ratio within a round counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from gpurun.arguments.ddp_options import flag_of
from gpurun.records.scaling import ScalingWay
from gpurun.records.spec import Setting, StopRule
from gpurun.scaling.efficiency import Efficiency, compared
from gpurun.scaling.finished_launch import FinishedLaunch
from gpurun.scaling.launch_rounds import TOLERANCE, Plan
from gpurun.scaling.scaling_launcher import ScalingLauncher
from gpurun.scaling.scaling_requests import PlannedLaunch

WORTH_TRYING = 0.02
"""The least exposed share of the step: the gain of a smaller one is lost in the noise."""
VIEW = Setting("gradient_as_bucket_view", True)
WAYS: tuple[tuple[Setting, ...], ...] = (
    (VIEW,),
    (VIEW, Setting("static_graph", True)),
    (Setting("bucket_cap_mb", 100), VIEW),
    (Setting("compression", "bf16"), VIEW),
)
"""Each with views, which spare a copy of every gradient and cost nothing."""
FEWER = Setting("accumulation", 2)
"""An exchange for every two batches, which changes training."""
STATIC = Setting("static_graph", True)
ROUNDING = "compression"
"""The option that changes numbers; what is tried of it needs NCCL."""


@dataclass
class DdpOption:
    """One way to exchange gradients. `rates`: by round, work a second of all ranks."""

    options: tuple[Setting, ...]
    settings: tuple[Setting, ...] = ()
    rates: dict[int, float] = field(default_factory=dict)
    error: str | None = None
    seconds: float | None = None
    """Duration of its last launch."""

    @property
    def name(self) -> str:
        """The name in a line of text."""
        knobs = (f"{setting.knob} {setting.value}" for setting in self.settings)
        return ", ".join((*knobs, *filter(None, [flag_of(self.options)]))) or "as by default"

    @property
    def batches(self) -> int:
        """The script's batches in a step: a launch of as many steps takes that much longer."""
        return int(FEWER.value) if FEWER in self.settings else 1

    @property
    def effect(self) -> str:
        """The effect class."""
        if self.settings:
            return "training"
        return "numerics" if any(o.knob == ROUNDING for o in self.options) else "pipeline"


@dataclass
class DdpOptionTrials:
    """Tries the ways at one count of ranks; what was found stands whatever ends it."""

    launcher: ScalingLauncher
    plan: Plan
    tell: Callable[[str], None]
    ways: list[DdpOption] = field(init=False, default_factory=list)

    def __post_init__(self) -> None:
        self._default = DdpOption(self.launcher.ddp_options)

    def run(self, ranks: int, rule: StopRule, *, nccl: bool) -> None:
        """Launch the ways in turn, as many rounds as the counts had. `nccl`: it exchanges them."""
        mine = set(self._default.options)
        ways = [DdpOption(way) for way in WAYS if not set(way) <= mine]
        ways = [way for way in ways if nccl or way.effect != "numerics"]
        # a static graph has each pass exchange like the first one
        fewer = [] if STATIC in mine else [DdpOption(self._default.options, (FEWER,))]
        self.ways = [*ways, *fewer]
        self.tell(f"trying {len(self.ways)} other ways to exchange gradients on {ranks} ranks")
        usual = self.launcher.longest[ranks]
        for number in range(1, self.plan.rounds + 1):
            sides = [self._default, *self.ways]
            for way in sides if number % 2 else sides[::-1]:
                if way.error is not None:
                    continue
                expected = TOLERANCE * (way.seconds or usual * way.batches)
                if self.plan.now() + expected > self.plan.deadline:
                    continue
                planned = PlannedLaunch(ranks, rule, options=way.options, settings=way.settings)
                self._take(way, number, self.launcher.run(planned))

    def gain(self, way: DdpOption) -> Efficiency | None:
        """Its throughput over the default's; None where no round has both."""
        base = self._default.rates
        ratios = [way.rates[k] / base[k] for k in sorted(way.rates.keys() & base.keys())]
        return compared(ratios, 1.0) if ratios else None

    def best(self) -> DdpOption | None:
        """The fastest of those that are faster beyond the noise and train alike; None if none."""
        found: list[tuple[float, DdpOption]] = []
        for way in self.ways:
            gain = None if way.effect == "training" else self.gain(way)
            if gain is not None and gain.interval is not None and gain.interval[0] > 1.0:
                found.append((gain.speedup, way))
        return max(found, key=lambda x: x[0])[1] if found else None

    def _take(self, way: DdpOption, number: int, launch: FinishedLaunch) -> None:
        name, way.seconds = way.name, launch.seconds
        if launch.figures is None:
            way.error = launch.error
            self.tell(f"round {number}, {name}: {launch.error}")
            return
        if way.settings and launch.figures.samples_per_second is None:
            way.error = "its samples cannot be counted, so its steps cannot be compared"
            return
        way.rates[number] = launch.figures.rate
        per_batch = launch.figures.step_time_ms / way.batches
        self.tell(f"round {number}, {name}: {per_batch:.3g} ms a batch")


def told(trying: DdpOptionTrials) -> tuple[ScalingWay, ...]:
    """The ways of the document, those that were launched."""
    best = trying.best()
    launched = (way for way in trying.ways if way.rates or way.error)
    return tuple(_told(way, trying.gain(way), faster=way is best) for way in launched)


def _told(way: DdpOption, gain: Efficiency | None, *, faster: bool) -> ScalingWay:
    return ScalingWay(
        ddp_options=flag_of(way.options),
        effect=way.effect,
        speedup=None if gain is None else gain.speedup,
        speedup_confidence_interval=None if gain is None else gain.interval,
        faster=faster,
        error=way.error,
        settings={setting.knob: setting.value for setting in way.settings},
    )
