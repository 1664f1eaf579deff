"""What the dashboards are made of: five kinds of panels, and the variables, links and annotations they all share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Self, cast

from grafana_foundation_sdk.builders import common as build_common
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.builders import heatmap, prometheus, stat, table, timeseries
from grafana_foundation_sdk.models import common, dashboard
from grafana_foundation_sdk.models.heatmap import HeatmapColorMode, HeatmapColorScale
from grafana_foundation_sdk.models.prometheus import PromQueryFormat
from grafana_foundation_sdk.models.table import Options as TableOptions

from deploy.grafana.queries import RATE, Query, increase

TAG: Final = "compaction-monitor"
SOURCE: Final = common.DataSourceRef(type_val="prometheus", uid="${datasource}")
# Stable: bookmarks and links of others hold on to them.
FLEET_UID: Final = "compaction-fleet"
AGENT_UID: Final = "compaction-agent"
WORKER_UID: Final = "compaction-worker"
# Units as Grafana calls them.
SHARE: Final = "percentunit"
EACH_MINUTE: Final = "cpm"
SEVERITIES: Final = {"critical": "red", "warning": "orange", "info": "blue"}
STATES: Final = {"blind": "purple", "healthy": "green", "new": "light-blue", "ended": "text"}
PHASES: Final = {"starting": "blue", "recovering": "orange", "working": "green", "rebalancing": "purple", "stopping": "text"}
# What series are called by their legend: a word has one colour in every panel.
WORDS: Final[dict[str, dict[str, str]]] = {
    "{{severity}}": SEVERITIES,
    "{{state}}": SEVERITIES | STATES,
    "{{phase}}": PHASES,
    "{{outcome}}": {"new": "green", "late": "orange", "completed": "green", "rejected": "orange", "failed": "red"},
    "{{result}}": {"committed": "green", "aborted": "red"},
    **{word: {word: color} for word, color in (("cosine", "purple"), ("spans", "green"), ("raw", "blue"))},
}

RUNBOOKS: Final = "docs/runbook"

Panel = stat.Panel | timeseries.Panel | heatmap.Panel | table.Panel


class Step(NamedTuple):
    """From this value on, this colour."""

    value: float
    color: str


class Link(NamedTuple):
    """Where a cell or a curve leads."""

    title: str
    url: str


# Of a curve that is called by its worker. What serves `/metrics` is asked why it is ready or not.
BY_WORKER: Final = "{{instance}}"
TO_WORKER: Final = Link("This worker", "http://${__field.labels.instance}/ready")


# Where the fleet's page begins, and half of it.
DANGER: Final = (Step(0.05, "orange"), Step(0.1, "red"))


def number(
    title: str, description: str, query: Query, *, unit: str = "short", base: str = "text", steps: Sequence[Step] = (),
    width: int = 4,
) -> stat.Panel:  # fmt: skip
    """What holds now, in one figure (or one for each series).

    Args:
        base: The colour below the first step.
    """
    panel = stat.Panel().title(title).description(description).datasource(SOURCE).span(width).height(4).unit(unit)
    panel.graph_mode(common.BigValueGraphMode.NONE).reduce_options(build_common.ReduceDataOptions().calcs(["lastNotNull"]))
    panel.thresholds(_thresholds(base, steps))
    return panel.with_target(_target(0, query).instant())


def lines(
    title: str, description: str, *queries: Query, unit: str = "short", stacked: bool = False, width: int = 8,
    bounds: tuple[float | None, float | None] = (0, None), steps: Sequence[Step] = (),
) -> timeseries.Panel:  # fmt: skip
    """Curves over time.

    Args:
        queries: What is called by its worker leads to that worker's page.
        stacked: On top of each other: parts of a whole. What happens so many times a minute stands as bars.
        bounds: Where the axis begins and ends; None: where the values do.
        steps: Lines across, from where on a value is worse.
    """
    panel = timeseries.Panel().title(title).description(description).datasource(SOURCE).span(width).height(8).unit(unit)
    legend = build_common.VizLegendOptions().show_legend(True).placement(common.LegendPlacement.BOTTOM)
    panel.legend(legend.display_mode(common.LegendDisplayMode.LIST).calcs([]))
    tooltip = build_common.VizTooltipOptions().mode(common.TooltipDisplayMode.MULTI).sort(common.SortOrder.DESCENDING)
    panel.tooltip(tooltip).line_width(2).fill_opacity(0).show_points(common.VisibilityMode.NEVER)
    if stacked:
        stacking = build_common.StackingConfig().mode(common.StackingMode.NORMAL).group("A")
        bars = unit == EACH_MINUTE
        panel.stacking(stacking).draw_style(common.GraphDrawStyle.BARS if bars else common.GraphDrawStyle.LINE)
        panel.fill_opacity(70).line_width(0)
    for set_bound, bound in zip((panel.min, panel.max), bounds, strict=True):
        if bound is not None:
            set_bound(bound)
    if steps:
        style = build_common.GraphThresholdsStyleConfig().mode(common.GraphThresholdsStyleMode.DASHED)
        panel.thresholds(_thresholds("transparent", steps)).thresholds_style(style)
    for place, query in enumerate(queries):
        panel.with_target(_target(place, query))
        if query.legend == BY_WORKER:
            panel.override_by_query(_ref(place), [_links([TO_WORKER])])
        for word, color in WORDS.get(query.legend, {}).items():
            panel.override_by_name(word, [_property("color", {"mode": "fixed", "fixedColor": color})])
    return panel


def events(title: str, description: str, *queries: Query, width: int = 8) -> timeseries.Panel:
    """What happens so many times a minute."""
    return lines(title, description, *queries, unit=EACH_MINUTE, stacked=True, width=width)


def buckets(title: str, description: str, name: str, *, unit: str, width: int = 8, **matchers: str) -> heatmap.Panel:
    """A histogram over time: the more observations fell into a bucket, the stronger its colour."""
    panel = heatmap.Panel().title(title).description(description).datasource(SOURCE).span(width).height(8).unit(unit)
    color = heatmap.HeatmapColorOptions().mode(HeatmapColorMode.SCHEME).scheme("Blues").fill("dark-blue").steps(64)
    panel.calculate(False).color(color.scale(HeatmapColorScale.EXPONENTIAL).exponent(0.5))
    panel.y_axis(heatmap.YAxisConfig().unit(unit)).cell_gap(1).hide_legend().filter_values(heatmap.FilterValueRange().le(1e-9))
    counts = increase(f"{name}_bucket", "le", RATE, **matchers)
    target = _target(0, Query(counts, "{{le}}"))
    return panel.with_target(target.format(PromQueryFormat.HEATMAP))


def columns(
    title: str, description: str, by: str, *queries: Query, links: Sequence[Link] = (), width: int = 24, height: int = 8
) -> table.Panel:
    """A table: a row for each value of a label, a column for each query, named by its legend; most of the first on top."""
    panel = (
        table.Panel()
        .title(title)
        .description(description)
        .datasource(SOURCE)
        .span(width)
        .height(height)
        .unit("short")
        .decimals(0)
    )
    names = {f"Value #{_ref(place)}": query.legend for place, query in enumerate(queries)}
    if len(queries) == 1:
        names = {"Value": queries[0].legend}
    organize = {"excludeByName": {"Time": True}, "indexByName": {}, "renameByName": names}
    panel.with_transformation(dashboard.DataTransformerConfig(id_val="merge", options={}))
    panel.with_transformation(dashboard.DataTransformerConfig(id_val="organize", options=organize))
    order = common.TableSortByFieldState(display_name=queries[0].legend, desc=True)
    cast(TableOptions, panel.build().options).sort_by = [order]
    if links:
        panel.override_by_name(by, [_links(links)])
    for place, query in enumerate(queries):
        panel.with_target(_target(place, query).instant().format(PromQueryFormat.TABLE))
    return panel


class Board:
    """One dashboard, row by row."""

    def __init__(self, uid: str, title: str, description: str, *variables: build.QueryVariable) -> None:
        self._board = build.Dashboard(title).uid(uid).description(description).tags([TAG]).readonly().timezone("browser")
        self._board.time("now-6h", "now").refresh("1m").tooltip(dashboard.DashboardCursorSync.CROSSHAIR)
        source = build.DatasourceVariable("datasource").label("Data source").type("prometheus")
        self._board.with_variable(source)
        own = (chosen("job", "compaction_ready"), chosen("instance", "compaction_ready", job="$job"), *variables, _runbooks())
        for variable in own:
            self._board.with_variable(variable)
        # On the monitor's own dashboard they can be switched on.
        self._board.annotation(_annotation("critical", shown=uid != WORKER_UID))
        self._board.annotation(_annotation("warning", shown=False))
        others = build.DashboardLink("Compaction").type(dashboard.DashboardLinkType.DASHBOARDS).tags([TAG])
        self._board.link(others.as_dropdown(True).include_vars(True).keep_time(True))
        runbooks = build.DashboardLink("Runbooks").type(dashboard.DashboardLinkType.LINK).url("${runbooks}").icon("doc")
        self._board.link(runbooks.target_blank(True).tooltip("What each alert means, and what to do"))
        self._ids = 0

    def row(self, title: str, *panels: Panel) -> Self:
        """A heading, and panels beneath it from left to right."""
        self._board.with_row(build.Row(title).id(self._next_id()))
        for panel in panels:
            self._board.with_panel(panel.id(self._next_id()))
        return self

    def build(self) -> dashboard.Dashboard:
        return self._board.build()

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids


def chosen(label: str, metric: str, **matchers: str) -> build.QueryVariable:
    """A variable: which values of a label to look at; all of them at first."""
    selected = ",".join(f'{name}=~"{value}"' for name, value in matchers.items())
    found = f"label_values({metric}{{{selected}}}, {label})" if selected else f"label_values({metric}, {label})"
    variable = build.QueryVariable(label).label(label.capitalize()).datasource(SOURCE).query(found).definition(found)
    variable.multi(True).include_all(True).all_value(".+").refresh(dashboard.VariableRefresh.ON_TIME_RANGE_CHANGED)
    everything = dashboard.VariableOption(selected=True, text=["All"], value=["$__all"])
    return variable.sort(dashboard.VariableSort.ALPHABETICAL_ASC).current(everything)


def _runbooks() -> build.TextBoxVariable:
    """Where the pages of `docs/runbook` can be read; whoever opens a dashboard may say it in the address, `var-runbooks`."""
    here = dashboard.VariableOption(selected=True, text=RUNBOOKS, value=RUNBOOKS)
    return build.TextBoxVariable("runbooks").label("Runbooks").default_value(RUNBOOKS).current(here)


def _annotation(severity: str, *, shown: bool) -> build.AnnotationQuery:
    """A mark wherever a check begins to raise findings of this severity; while it goes on there is no other."""
    raised = increase("compaction_findings_total", "check", RATE, severity=severity, status="raised")
    before = raised.replace(f"[{RATE}]", f"[{RATE}] offset {RATE}")
    annotation = build.AnnotationQuery().name(f"{severity} findings").datasource(SOURCE).icon_color(SEVERITIES[severity])
    annotation.enable(shown).title_format(f"{severity}: {{{{check}}}}").step("60s")
    return annotation.expr(f"{raised} > 0 unless {before} > 0")


def _property(name: str, value: object) -> dashboard.DynamicConfigValue:
    return dashboard.DynamicConfigValue(id_val=name, value=value)


def _links(links: Sequence[Link]) -> dashboard.DynamicConfigValue:
    return _property("links", [{"title": link.title, "url": link.url} for link in links])


def _target(place: int, query: Query) -> prometheus.Dataquery:
    target = prometheus.Dataquery().expr(query.expr).legend_format(query.legend).ref_id(_ref(place))
    return target.exemplar(True) if query.exemplars else target


def _ref(place: int) -> str:
    return chr(ord("A") + place)


def _thresholds(base: str, steps: Sequence[Step]) -> build.ThresholdsConfig:
    made = [dashboard.Threshold(value=None, color=base), *(dashboard.Threshold(step.value, step.color) for step in steps)]
    return build.ThresholdsConfig().mode(dashboard.ThresholdsMode.ABSOLUTE).steps(made)
