import java.util.List;

/** The round checks: `compaction_monitor.checks.rounds`, function by function, with the default thresholds. */
final class Checks {
    static final double FLOOR = 0.25;
    static final double RECOVERED = 0.30;
    static final double SPAN_FLOOR = 0.20;
    static final double RISK_BELOW = 0.50;
    static final double RISK_OVER = 0.55;
    static final int RISK_ROUNDS = 4;
    static final int RISK_FALL_ROUNDS = 3;
    static final int PINNED_ROUNDS = 5;
    static final int PINNED_DEPTH = 3;
    static final double COVERAGE = 0.5;
    static final double FULL = 0.9;
    static final int FULL_ROUNDS = 3;
    static final int BURST_ROUNDS = 4;
    static final long BURST_US = 1_200_000_000L;
    static final double SPANS_MARGIN = 0.05;
    static final double COSINE_MARGIN = 0.02;
    static final int MAX_SUBJECTS = 20;

    record Verdict(boolean holds, boolean over, String skipped, String severity, List<String> subjects) { }

    static final Verdict CLEAR = new Verdict(false, false, "", null, List.of());
    static final Verdict OVER = new Verdict(false, true, "", null, List.of());

    private static Verdict skipped(String why) {
        return new Verdict(false, false, why, null, List.of());
    }

    private static Verdict holds(String severity) {
        return new Verdict(true, false, "", severity, List.of());
    }

    interface Check {
        Verdict look(State session, Contract.Event event);
    }

    /** In the order in which they are looked at; the first four are one family, worst first. */
    static final String[] NAMES = {
        "salience_inversion", "provenance_floor", "inversion_risk", "drift", "depth_pinned", "orphaned_summary",
        "coverage_gap", "summary_failed", "compaction_thrash",
    };
    static final int GROUNDING = 4;
    /** Reasons to skip that hold for the whole session: what was raised before they were known is over. */
    static final java.util.Set<String> NEVER_APPLIES = java.util.Set.of("chain", "flat", "continuous", "no_scorer");
    private static final Check[] CHECKS = {
        Checks::inversion, Checks::floor, Checks::risk, Checks::drift, Checks::pinned, Checks::orphaned, Checks::coverage,
        Checks::failed, Checks::thrash,
    };

    static Verdict look(int check, State session, Contract.Event event) {
        return CHECKS[check].look(session, event);
    }

    static boolean falls(State.Round before, State.Round after) {
        if (after.measured() && before.measured()) return after.spans() < before.spans();
        return before.spans() - after.spans() > SPANS_MARGIN * before.spans();
    }

    private static boolean rises(State.Round before, State.Round after) {
        if (after.measured() && before.measured()) return after.cosine() > before.cosine();
        return Findings.rounded(after.cosine() - before.cosine(), 9) > COSINE_MARGIN;
    }

    private static String noLevels(State session) {
        return "chain".equals(session.topology) || "flat".equals(session.topology) ? session.topology : "";
    }

    private static String gate(State session) {
        if (session.depthPenalty != null && session.depthPenalty != 0) return "depth_penalty";
        return "overflow".equals(session.eviction) ? "overflow" : "";
    }

    private static State.Round before(State session) {
        return session.window.size() < 2 ? null : session.window.get(session.window.size() - 2);
    }

    static Verdict inversion(State session, Contract.Event event) {
        State.Round now = session.last();
        boolean over = now.rawRatio() >= RECOVERED;
        String blind = blind(session);
        if (!blind.isEmpty()) return new Verdict(false, over, blind, null, List.of());
        State.Round before = before(session);
        if (now.depth() >= 2 && now.rawRatio() < FLOOR && gate(session).isEmpty()) {
            if (falls(before, now) && rises(before, now)) return holds("critical");
        }
        return over ? OVER : CLEAR;
    }

    private static String blind(State session) {
        State.Round now = session.last();
        String levels = noLevels(session);
        if (!levels.isEmpty()) return levels;
        if ("none".equals(session.scorer)) return "no_scorer";
        if (now.depth() == null) return "no_depth";
        State.Round before = before(session);
        if (before == null) return "no_previous";
        if (now.spans() == null || before.spans() == null) return "no_reachability";
        return now.cosine() == null || before.cosine() == null ? "no_cosine" : "";
    }

    private static Verdict floor(State session, Contract.Event event) {
        State.Round now = session.last();
        if ("flat".equals(session.topology)) return skipped("flat");
        boolean chain = "chain".equals(session.topology);
        Double floor = chain ? chainFloor(event) : spanFloor(session) == null ? null : (Double) (double) spanFloor(session);
        boolean enough = floor != null && now.spans() != null && now.spans() >= floor;
        boolean over = enough && (now.compaction() || !chain);
        if (now.depth() == null) return new Verdict(false, over, "no_depth", null, List.of());
        if (now.spans() == null) return skipped("no_reachability");
        if (floor == null) return skipped(chain ? "no_before" : "no_source_spans");
        if (enough) return over ? OVER : CLEAR;
        return now.depth() >= 2 ? holds("critical") : CLEAR;
    }

    private static Double chainFloor(Contract.Event event) {
        return event.before == null || event.before.spans == null ? null : (Double) (SPAN_FLOOR * event.before.spans);
    }

    static Long spanFloor(State session) {
        return session.sourceSpans == null ? null : (Long) Math.max(1, (long) (SPAN_FLOOR * session.sourceSpans));
    }

    private static Verdict risk(State session, Contract.Event event) {
        List<State.Round> window = session.window;
        State.Round now = session.last();
        String levels = noLevels(session);
        if (!levels.isEmpty()) return skipped(levels);
        if (now.depth() == null) return new Verdict(false, now.rawRatio() >= RISK_OVER, "no_depth", null, List.of());
        if (now.rawRatio() >= RISK_OVER) return OVER;
        int size = window.size();
        List<State.Round> recent = window.subList(Math.max(0, size - RISK_FALL_ROUNDS - 1), size);
        State.Round first = window.get(0);
        if (first.spans() == null) return skipped("no_reachability");
        for (State.Round entry : recent) if (entry.spans() == null) return skipped("no_reachability");
        boolean fell = false;
        for (int at = 1; at < recent.size(); at++) fell |= falls(recent.get(at - 1), recent.get(at));
        if (!fell) return recent.size() > RISK_FALL_ROUNDS ? OVER : few(size);
        if (size < RISK_ROUNDS) return few(size);
        boolean sinking = session.belowHalf && now.rawRatio() < first.rawRatio() && falls(first, now);
        return sinking && now.depth() >= 2 ? holds("warning") : CLEAR;
    }

    private static Verdict few(int size) {
        if (size < 2) return skipped("no_previous");
        return size < RISK_ROUNDS ? skipped("few_rounds") : CLEAR;
    }

    private static Verdict drift(State session, Contract.Event event) {
        State.Round now = session.last();
        String levels = noLevels(session);
        if (!levels.isEmpty()) return skipped(levels);
        if (now.rawRatio() >= RECOVERED) return OVER;
        if (now.depth() == null) return skipped("no_depth");
        if (now.depth() < 2 || now.rawRatio() >= FLOOR || now.raw() + now.summary() == 0) return CLEAR;
        if (inversion(session, event).holds()) return CLEAR;
        String cause = driftCause(session);
        if (cause.startsWith("no_")) return skipped(cause);
        State.Round before = before(session);
        boolean fell = before != null && before.spans() != null && now.spans() != null && falls(before, now);
        return holds(cause.equals("spans_stable") || !fell ? "info" : "warning");
    }

    static String driftCause(State session) {
        String closed = gate(session);
        if (!closed.isEmpty()) return closed;
        if ("none".equals(session.scorer)) return "scorer_none";
        State.Round before = before(session);
        State.Round now = session.last();
        if (before == null) return "no_previous";
        if (before.spans() == null || now.spans() == null) return "no_reachability";
        if (!falls(before, now)) return "spans_stable";
        return before.cosine() == null || now.cosine() == null ? "no_cosine" : "cosine_not_rising";
    }

    private static Verdict pinned(State session, Contract.Event event) {
        State.Round now = session.last();
        String levels = noLevels(session);
        if (!levels.isEmpty()) return skipped(levels);
        if (now.depth() == null) return skipped("no_depth");
        if (now.depth() < deepestAllowed(session)) return OVER;
        if (session.pinned <= PINNED_ROUNDS || now.depth() < PINNED_DEPTH) return CLEAR;
        State.Round first = session.window.get(0);
        boolean sinks = first.spans() != null && now.spans() != null && falls(first, now);
        return holds(sinks || now.rawRatio() < FLOOR ? "warning" : "info");
    }

    static long deepestAllowed(State session) {
        return session.maxDepth == null ? session.deepest : session.maxDepth;
    }

    private static Verdict orphaned(State session, Contract.Event event) {
        if (event.summaries == null) return skipped("no_inventory");
        if (!"pointer".equals(event.spansMethod)) return skipped("no_pointers");
        List<String> orphans = new java.util.ArrayList<>();
        for (Contract.Summary item : event.summaries) if (item.leafSpans == 0) orphans.add(item.id);
        if (!orphans.isEmpty()) {
            java.util.Collections.sort(orphans);
            List<String> subjects = orphans.subList(0, Math.min(orphans.size(), MAX_SUBJECTS));
            return new Verdict(true, false, "", "critical", subjects);
        }
        return event.summariesTotal == null || event.summariesTotal <= event.summaries.length ? OVER : CLEAR;
    }

    private static Verdict coverage(State session, Contract.Event event) {
        String kind = event.summaryKind;
        if ("none".equals(kind) || "empty".equals(kind) || "error".equals(kind)) return skipped("no_summary");
        if (event.claimed == null || event.claimed == 0 || event.read == null) return skipped("no_records");
        if (event.read < COVERAGE * event.claimed) return holds("critical");
        return event.compaction() ? OVER : CLEAR;
    }

    private static Verdict failed(State session, Contract.Event event) {
        String kind = event.summaryKind;
        if (kind == null || kind.equals("other")) return skipped("no_summary_kind");
        return switch (kind) {
            case "error", "empty" -> holds("critical");
            case "fallback" -> holds("warning");
            default -> kind.equals("ok") && event.compaction() ? OVER : CLEAR;
        };
    }

    private static Verdict thrash(State session, Contract.Event event) {
        if (!"overflow".equals(session.eviction) && !"chain".equals(session.topology)) {
            return skipped("continuous".equals(session.eviction) ? "continuous" : "no_eviction");
        }
        if (!session.last().compaction()) return CLEAR;
        return staysFull(session) || bursts(session) ? holds("warning") : OVER;
    }

    static boolean staysFull(State session) {
        int seen = 0;
        int full = 0;
        for (int at = session.window.size() - 1; at >= 0 && seen < FULL_ROUNDS; at--) {
            State.Round entry = session.window.get(at);
            if (!entry.compaction()) continue;
            seen++;
            if (!entry.manual() && entry.fullRatio() != null && entry.fullRatio() > FULL) full++;
        }
        return full == FULL_ROUNDS;
    }

    static boolean bursts(State session) {
        State.Round last = session.last();
        if (!last.compaction() || last.manual()) return false;
        int seen = 0;
        for (int at = session.window.size() - 1; at >= 0; at--) {
            State.Round entry = session.window.get(at);
            if (!entry.compaction() || entry.manual()) continue;
            if (++seen == BURST_ROUNDS) return last.atUs() - entry.atUs() <= BURST_US;
        }
        return false;
    }
}
