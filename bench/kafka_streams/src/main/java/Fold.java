import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** One record into its session: `compaction_monitor.fold` and `loop.episodes`, for rounds, publishing alerts without orders. */
final class Fold {
    private static final long CLOCK_AHEAD_US = 300_000_000L;
    private static final long EXPIRY_US = 86_400_000_000L;

    private final Findings texts;
    private final Map<String, Long> counts;
    final List<Findings.Finding> findings = new ArrayList<>(2);
    State session;
    String sessionId;
    byte[] traceparent;
    long atUs;
    private String cause;

    Fold(Findings texts, Map<String, Long> counts) {
        this.texts = texts;
        this.counts = counts;
    }

    void apply(State known, Contract.Event event, long appendedMs) {
        session = known;
        sessionId = event.sessionId;
        traceparent = event.traceparent;
        cause = event.ceId;
        long at = Math.min(event.atUs, appendedMs * 1_000 + CLOCK_AHEAD_US);
        if (session != null && session.lastUs() != 0 && at - session.lastUs() > EXPIRY_US) {
            atUs = session.lastUs() + EXPIRY_US;
            for (State.Alert alert : List.copyOf(session.alerts)) resolve(alert, "expired", Map.of(), null);
            session = null;
        }
        if (session == null) {
            session = new State();
            session.agent = event.agent;
        }
        atUs = at;
        session.appendedMs = appendedMs;
        round(event);
    }

    private void round(Contract.Event event) {
        State.Round last = session.last();
        if (atUs < session.clockUs || last == null && atUs == session.clockUs) {
            count("late");
            return;
        }
        if (last != null && event.round <= last.number() && (atUs == last.atUs() || takenBackAgain(event))) {
            count("duplicate");
            return;
        }
        if (last != null && event.round <= last.number()) {
            session.window.clear();
            session.gap = session.belowHalf = false;
            session.pinned = session.deepest = session.failed = 0;
            last = null;
        }
        session.gap = last != null && event.round != last.number() + 1;
        count(session.gap ? "gap" : "new");
        add(event);
        advance(event);
        judge(event);
        if (!event.propositions) count("no_propositions");
    }

    private void add(Contract.Event event) {
        if (session.startedAtUs == null) session.agent = event.agent;
        if (event.topology != null && !event.topology.equals("other")) session.topology = event.topology;
        if (event.maxDepth != null) session.maxDepth = event.maxDepth;
        if (event.tokenBudget != null) session.tokenBudget = event.tokenBudget;
        if (session.window.size() == State.WINDOW_ROUNDS) session.window.remove(0);
        session.window.add(entry(event, atUs));
        session.clockUs = atUs;
        session.ended = false;
    }

    private State.Round entry(Contract.Event event, long at) {
        Long budget = session.tokenBudget;
        Contract.Composition after = event.after;
        Double full = budget == null || budget == 0 ? null : (Double) ((double) (after.raw + after.summary) / budget);
        return new State.Round(
                event.round, at, event.compaction(), "manual".equals(event.trigger), event.basis.equals("measured"),
                after.raw, after.summary, after.spans, after.cosine, after.depth, full);
    }

    private boolean takenBackAgain(Contract.Event event) {
        if (event.atUs == atUs) return false;
        for (State.Round known : session.window) if (entry(event, known.atUs()).equals(known)) return true;
        return false;
    }

    private void advance(Contract.Event event) {
        State.Round now = session.last();
        if (now.rawRatio() < Checks.RISK_BELOW) session.belowHalf = true;
        else if (now.rawRatio() >= Checks.RISK_OVER) session.belowHalf = false;
        if (now.depth() != null) {
            if (session.maxDepth == null && now.depth() > session.deepest) session.pinned = 0;
            session.deepest = Math.max(session.deepest, now.depth());
            if (now.depth() < Checks.deepestAllowed(session)) session.pinned = 0;
            else if (now.compaction()) session.pinned++;
        }
        if (!now.compaction()) return;
        session.compactions++;
        String kind = event.summaryKind;
        if ("error".equals(kind) || "empty".equals(kind) || "fallback".equals(kind)) session.failed++;
        else if ("ok".equals(kind)) session.failed = 0;
    }

    private void judge(Contract.Event event) {
        boolean[] openBefore = new boolean[Checks.NAMES.length];
        Checks.Verdict[] verdicts = new Checks.Verdict[Checks.NAMES.length];
        for (int check = 0; check < verdicts.length; check++) {
            verdicts[check] = Checks.look(check, session, event);
            openBefore[check] = open(Checks.NAMES[check]) != null;
            if (!verdicts[check].skipped().isEmpty()) count(verdicts[check].skipped());
        }
        if (!session.alerts.isEmpty()) {
            for (State.Alert alert : List.copyOf(session.alerts)) {
                Checks.Verdict verdict = verdicts[place(alert.check())];
                if (!verdict.over() && !Checks.NEVER_APPLIES.contains(verdict.skipped())) continue;
                String because = verdict.over() ? "recovered" : "ended";
                resolve(alert, because, texts.evidence(alert.check(), session, event), null);
                if (alert.check().equals("salience_inversion")) session.relapseFrom = session.compactions;
            }
        }
        if (!event.compaction()) return;
        for (int check = 0; check < verdicts.length; check++) {
            if (verdicts[check].holds() && !outranked(check, openBefore)) open(check, verdicts[check], event);
        }
    }

    private boolean outranked(int check, boolean[] openBefore) {
        for (int worse = 0; check < Checks.GROUNDING && worse < check; worse++) {
            if (openBefore[worse] || open(Checks.NAMES[worse]) != null) return true;
        }
        return false;
    }

    private void open(int place, Checks.Verdict verdict, Contract.Event event) {
        String check = Checks.NAMES[place];
        boolean mayBeCritical = check.equals("coverage_gap") || check.equals("summary_failed");
        String severity = verdict.severity();
        if (!event.basis.equals("measured") && !mayBeCritical && severity.equals("critical")) severity = "warning";
        State.Alert known = open(check);
        if (known != null && !worthRepeating(known, severity, verdict)) {
            List<String> left = new ArrayList<>(known.subjects());
            left.retainAll(verdict.subjects());
            put(new State.Alert(
                    check, known.id(), known.severity(), left, known.startedAtUs(), known.attempt(), known.remediationId(),
                    known.basis()), false);
            return;
        }
        if (known != null && rank(severity) > rank(known.severity())) severity = known.severity();
        State.Alert alert = new State.Alert(
                check,
                known != null ? known.id() : Findings.findingId(sessionId, check, cause),
                severity,
                verdict.subjects(),
                known != null ? known.startedAtUs() : atUs,
                known != null ? known.attempt() + 1 : 1,
                known != null ? known.remediationId() : null,
                event.basis);
        put(alert, true);
        findings.add(texts.raised(this, alert, texts.evidence(check, session, event)));
        count("raised");
        if (place >= Checks.GROUNDING) return;
        for (State.Alert milder : List.copyOf(session.alerts)) {
            int other = place(milder.check());
            if (other > place && other < Checks.GROUNDING) {
                resolve(milder, "superseded", texts.evidence(milder.check(), session, event), alert.id());
            }
        }
    }

    private boolean worthRepeating(State.Alert known, String severity, Checks.Verdict verdict) {
        if (rank(severity) < rank(known.severity())) return true;
        if (known.check().equals("summary_failed") && session.failed == 2) return true;
        return !known.subjects().containsAll(verdict.subjects());
    }

    private void put(State.Alert alert, boolean last) {
        for (int at = 0; at < session.alerts.size(); at++) {
            if (!session.alerts.get(at).check().equals(alert.check())) continue;
            if (!last) {
                session.alerts.set(at, alert);
                return;
            }
            session.alerts.remove(at);
            break;
        }
        session.alerts.add(alert);
    }

    private void resolve(State.Alert alert, String because, Map<String, Object> evidence, String supersededBy) {
        session.alerts.removeIf(open -> open.id().equals(alert.id()));
        findings.add(texts.resolved(this, alert, because, evidence, supersededBy));
        count("resolved");
    }

    private State.Alert open(String check) {
        for (State.Alert alert : session.alerts) if (alert.check().equals(check)) return alert;
        return null;
    }

    private static int place(String check) {
        for (int at = 0; at < Checks.NAMES.length; at++) if (Checks.NAMES[at].equals(check)) return at;
        throw new IllegalArgumentException(check);
    }

    private static int rank(String severity) {
        return severity.equals("critical") ? 0 : severity.equals("warning") ? 1 : 2;
    }

    private void count(String what) {
        counts.merge(what, 1L, Long::sum);
    }
}
