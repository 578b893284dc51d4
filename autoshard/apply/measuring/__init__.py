"""Times of collectives and ops on the devices that are there."""

from autoshard.apply.measuring.devices import DeviceFacts, describe_devices, find_devices
from autoshard.apply.measuring.measure import FamilyTimes, measure_families
from autoshard.apply.measuring.probes import (
    ACCELERATOR_SIZES,
    HOST_SIZES,
    CollectiveProbe,
    Family,
    OpProbe,
    Probe,
    ProbeSizes,
    family_name,
    plan_probes,
)
from autoshard.apply.measuring.programs import work_of
from autoshard.apply.measuring.timing import Timing

__all__ = [
    "ACCELERATOR_SIZES",
    "HOST_SIZES",
    "CollectiveProbe",
    "DeviceFacts",
    "Family",
    "FamilyTimes",
    "OpProbe",
    "Probe",
    "ProbeSizes",
    "Timing",
    "describe_devices",
    "family_name",
    "find_devices",
    "measure_families",
    "plan_probes",
    "work_of",
]
