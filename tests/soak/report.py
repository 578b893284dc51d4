"""The page of what the soaks found."""
from pathlib import Path
def write_report(path: Path, records: list[Path]) -> None:
    raise NotImplementedError
