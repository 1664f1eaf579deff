"""Numbers and plans in words."""

from __future__ import annotations

from typing import Any

from rich.text import Text

from compaction_monitor.report.document import Document


def counted(count: int, noun: str) -> str:
    """A count with its noun.

    >>> counted(1, "round"), counted(2, "round")
    ('1 round', '2 rounds')
    """
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def tokens(count: int | None) -> str:
    """A count of tokens, `-` where there is none.

    >>> tokens(156699), tokens(None)
    ('156,699', '-')
    """
    return "-" if count is None else f"{count:,}"


def number(value: float | None, digits: int = 2) -> str:
    """A ratio or cosine, `-` where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def plan(found: Document) -> Text:
    """An order's plan in a line: its action, then what that means here."""
    return Text.assemble((found["action"], "bold"), f": {_meaning(found)}")


def _meaning(found: Document) -> str:
    match found["action"]:
        case "halt_and_rehydrate":
            return f"stop compacting; {_expansion(found)} until raw_ratio is {found['target_raw_ratio']:g}{_reached(found)}"
        case "rehydrate":
            return f"{_expansion(found)} until {counted(found['target_spans'], 'span')} can be reached{_reached(found)}"
        case "escalate_to_raw":
            return f"go back to the raw log for {_lost(found)}"
        case "cap_depth":
            with_leaves = ", none without a reachable leaf" if found["reachability"] else ""
            return f"build no summary deeper than {found['max_depth']}{with_leaves}"
        case "recompact":
            return f"run the pass of round {found['round']} again"
        case "raise_budget":
            return f"give the set more room: {tokens(found.get('token_budget'))} tokens now{_suggested(found)}"
        case "resume":
            return f"compaction may go on ({found['because']})"
    return ", ".join(f"{name} {_value(value)}" for name, value in found.items() if name != "action" and value not in ([], ()))


def _expansion(found: Document) -> str:
    count = len(found["steps"])
    if not count:
        return "expand summaries"
    return "expand this summary" if count == 1 else f"expand these {count} summaries"


def _reached(found: Document) -> str:
    over = found.get("tokens_over_budget")
    if not found["steps"]:
        return ""
    fits = "" if over is None else ", within the budget" if over == 0 else f", {tokens(over)} tokens over the budget"
    return f" ({'reached' if found['complete'] else 'not reached by these alone'}{fits})"


def _lost(found: Document) -> str:
    what = found["what"]
    if found["ids"]:
        named = f"{what} {', '.join(found['ids'])}"
    else:
        named = what if "count" not in found else f"{found['count']:,} {what}"
    return named + (f" of round {found['round']}" if "round" in found else "")


def _suggested(found: Document) -> str:
    wanted = found.get("suggested_token_budget")
    return "" if wanted is None else f", {tokens(wanted)} suggested"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return "; ".join(map(_value, value))
    if isinstance(value, dict):
        return " ".join(f"{name} {_value(part)}" for name, part in value.items())
    return str(value)
