"""What docs/service.md and docs/law.md say of load, memory and fingerprints, from results/: see `make results`."""

from __future__ import annotations

from typing import Any

GROUPS = {
    "kept": "compression, change of size, noise, brightness, contrast, gamma, grey",
    "moved": "rotation, mirror, crop, border, screenshot",
    "combined": "combinations of them",
    "harsh": "harsh ones (JPEG 10, blur, erasing)",
}
BORDERLESS_VIEWS = 16  # eight, and eight without a plain border
OLDER = "This run is older than the look-up without borders. "


def load_table(document: dict[str, Any]) -> str:
    """A line a run of the service and of the release that it took turns with."""
    lines = [
        "| release, workers, clients | answers a second | 503 | other errors | p50 / p99 of an answer, s | "
        "CPU an answer, ms | load before |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    ratios = []
    for row in document["rows"]:
        if row["kind"] != "load":
            continue
        for name in ("this release", "release compared with"):
            lines += [_run(name, row, run) for run in row.get(name, [])]
        if "times_the_answers_a_second" in row:
            ratios.append(
                f"{row['workers']} {'worker' if row['workers'] == 1 else 'workers'}: "
                f"{_listed(row['times_the_answers_a_second'])} times the answers a second, "
                f"{_listed(row['times_the_answers_a_cpu_second'])} times the answers a CPU second, round by round"
            )
    return "\n".join(lines) + "".join(f"\n\n{ratio}." for ratio in ratios)


def _run(name: str, row: dict[str, Any], run: dict[str, Any]) -> str:
    compared = f" {row['against']}" if name == "release compared with" and row.get("against") else ""
    workers = 1 if name == "release compared with" else row["workers"]
    return (
        f"| {name}{compared}, {workers}, {row['clients']} | {run['answered_per_second']:g} | "
        f"{run['refused_503']} | {run['errors']} | {run['answered_p50_s']} / {run['answered_p99_s']} | "
        f"{run['server_cpu_ms_an_answer']:.0f} | {run['load_before']:.1f} |"
    )


def memory_table(document: dict[str, Any]) -> str:
    """A sentence a run; none was measured yet if there is none."""
    said = [
        f"{row['minutes']:g} minutes, {row['clients']} clients, {row['workers']} "
        f"{'worker' if row['workers'] == 1 else 'workers'}: {run['first_tenth_mb']:,.0f} MB in the second tenth of "
        f"the time, {run['last_tenth_mb']:,.0f} MB in the last; answers by status: "
        + ", ".join(f"{number:,} of {status}" for status, number in run["statuses"].items())
        + "."
        for row in document["rows"]
        if row["kind"] == "memory"
        for run in row["this release"]
    ]
    return "\n".join(said) if said else "Memory over ten minutes was not measured for this release yet."


def _listed(values: list[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def fingerprint_table(document: dict[str, Any]) -> str:
    """Recall by group of attacks, and the false look-ups."""
    chosen, test = document["chosen"], document["test"]
    head = f"On {test['pictures']} pictures that nothing was chosen on:"
    lines = [head, "", "| after | found |", "| --- | --- |"]
    lines += [f"| {words} | {test['groups'][name]:.2f} |" for name, words in GROUPS.items()]
    lines.append(f"| all {len(test['attacks'])} | {test['recall']:.2f} |")
    false = [
        f"{_false(*test['false'])} of pictures as they are",
        f"{_false(*test['false_after_attacks'])} of attacked ones",
    ]
    if "false_windows" in test:
        found = test["false_windows"]
        false.append(f"{_false(found['false'], found['of'], *found['interval_95'])} of windows of them")
    older = OLDER if all(choice["views"] < BORDERLESS_VIEWS for choice in document["choices"]) else ""
    text = (
        f"{older}False look-ups of other pictures among {document['config']['entries']:,} entries, "
        f"{chosen['views']} views each, at most {chosen['threshold']} bits: {', '.join(false)}."
    )
    if "search" in document:
        search = document["search"]
        seconds = search["cpu_seconds"]
        text += f" {search['views']} views among {search['entries']:,} entries take {seconds:g} s of CPU."
    return "\n".join([*lines, "", text])


def _false(false: int, of: int, low: float, high: float) -> str:
    return f"{false:,} of {of:,} (95%: at most {high:.2g})"
