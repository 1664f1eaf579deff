import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.List;

/** What is remembered of a session, and its row: the same positional array as `compaction_monitor.state.session`, without orders. */
final class State {
    static final int VERSION = 1;
    static final int WINDOW_ROUNDS = 8;
    private static final long NEVER_MS = 1L << 53;
    private static final JsonFactory JSON = new JsonFactory();

    record Round(
            long number, long atUs, boolean compaction, boolean manual, boolean measured, long raw, long summary,
            Long spans, Double cosine, Long depth, Double fullRatio) {
        double rawRatio() {
            long total = raw + summary;
            return total == 0 ? 0.0 : (double) raw / total;
        }
    }

    record Alert(
            String check, String id, String severity, List<String> subjects, long startedAtUs, long attempt,
            String remediationId, String basis) { }

    String agent;
    String agentVersion;
    Long startedAtUs;
    String topology;
    Long maxDepth;
    Long tokenBudget;
    Long sourceSpans;
    String scorer;
    Double depthPenalty;
    Double recencyDecay;
    String eviction;
    String controller;
    boolean complete;
    List<Round> window = new ArrayList<>(WINDOW_ROUNDS);
    long compactions;
    boolean gap;
    boolean belowHalf;
    long pinned;
    long deepest;
    long failed;
    long commits;
    boolean hasTree;
    long clockUs;
    long activeUs;
    Long endedAtUs;
    boolean ended;
    long appendedMs;
    boolean answered;
    Long relapseFrom;
    List<Alert> alerts = new ArrayList<>();

    Round last() {
        return window.isEmpty() ? null : window.get(window.size() - 1);
    }

    long lastUs() {
        long at = Math.max(clockUs, activeUs);
        return at != 0 ? at : startedAtUs == null ? 0 : startedAtUs;
    }

    byte[] toBytes() {
        ByteArrayOutputStream out = new ByteArrayOutputStream(640);
        try (JsonGenerator json = JSON.createGenerator(out)) {
            json.writeStartArray();
            json.writeNumber(VERSION);
            json.writeNumber(NEVER_MS);
            json.writeNumber(Math.max(lastUs() / 1_000, appendedMs));
            text(json, agent);
            text(json, agentVersion);
            number(json, startedAtUs);
            text(json, topology);
            number(json, maxDepth);
            number(json, tokenBudget);
            number(json, sourceSpans);
            text(json, scorer);
            number(json, depthPenalty);
            number(json, recencyDecay);
            text(json, eviction);
            text(json, controller);
            json.writeBoolean(complete);
            json.writeStartArray();
            for (Round round : window) write(json, round);
            json.writeEndArray();
            json.writeNumber(compactions);
            json.writeBoolean(gap);
            json.writeBoolean(belowHalf);
            json.writeNumber(pinned);
            json.writeNumber(deepest);
            json.writeNumber(failed);
            json.writeNumber(commits);
            json.writeBoolean(hasTree);
            json.writeNumber(clockUs);
            json.writeNumber(activeUs);
            number(json, endedAtUs);
            json.writeBoolean(ended);
            json.writeNumber(appendedMs);
            json.writeBoolean(answered);
            number(json, relapseFrom);
            json.writeStartArray();
            for (Alert alert : alerts) write(json, alert);
            json.writeEndArray();
            for (int empty = 0; empty < 3; empty++) {
                json.writeStartArray();
                json.writeEndArray();
            }
            json.writeEndArray();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        return out.toByteArray();
    }

    private static void write(JsonGenerator json, Round round) throws IOException {
        json.writeStartArray();
        json.writeNumber(round.number);
        json.writeNumber(round.atUs);
        json.writeBoolean(round.compaction);
        json.writeBoolean(round.manual);
        json.writeBoolean(round.measured);
        json.writeNumber(round.raw);
        json.writeNumber(round.summary);
        number(json, round.spans);
        number(json, round.cosine);
        number(json, round.depth);
        number(json, round.fullRatio);
        json.writeEndArray();
    }

    private static void write(JsonGenerator json, Alert alert) throws IOException {
        json.writeStartArray();
        json.writeString(alert.check);
        json.writeString(alert.id);
        json.writeString(alert.severity);
        json.writeStartArray();
        for (String subject : alert.subjects) json.writeString(subject);
        json.writeEndArray();
        json.writeNumber(alert.startedAtUs);
        json.writeNumber(alert.attempt);
        text(json, alert.remediationId);
        json.writeString(alert.basis);
        json.writeEndArray();
    }

    private static void text(JsonGenerator json, String value) throws IOException {
        if (value == null) json.writeNull();
        else json.writeString(value);
    }

    private static void number(JsonGenerator json, Long value) throws IOException {
        if (value == null) json.writeNull();
        else json.writeNumber(value);
    }

    private static void number(JsonGenerator json, Double value) throws IOException {
        if (value == null) json.writeNull();
        else json.writeNumber(value);
    }

    static State fromBytes(byte[] row) {
        State state = new State();
        try (JsonParser json = JSON.createParser(row)) {
            json.nextToken();
            if (json.nextLongValue(0) != VERSION) throw new IllegalStateException("a state of another version");
            json.nextToken();
            json.nextToken();
            state.agent = json.nextTextValue();
            state.agentVersion = json.nextTextValue();
            state.startedAtUs = integer(json);
            state.topology = json.nextTextValue();
            state.maxDepth = integer(json);
            state.tokenBudget = integer(json);
            state.sourceSpans = integer(json);
            state.scorer = json.nextTextValue();
            state.depthPenalty = decimal(json);
            state.recencyDecay = decimal(json);
            state.eviction = json.nextTextValue();
            state.controller = json.nextTextValue();
            state.complete = json.nextBooleanValue();
            json.nextToken();
            while (json.nextToken() == JsonToken.START_ARRAY) state.window.add(round(json));
            state.compactions = json.nextLongValue(0);
            state.gap = json.nextBooleanValue();
            state.belowHalf = json.nextBooleanValue();
            state.pinned = json.nextLongValue(0);
            state.deepest = json.nextLongValue(0);
            state.failed = json.nextLongValue(0);
            state.commits = json.nextLongValue(0);
            state.hasTree = json.nextBooleanValue();
            state.clockUs = json.nextLongValue(0);
            state.activeUs = json.nextLongValue(0);
            state.endedAtUs = integer(json);
            state.ended = json.nextBooleanValue();
            state.appendedMs = json.nextLongValue(0);
            state.answered = json.nextBooleanValue();
            state.relapseFrom = integer(json);
            json.nextToken();
            while (json.nextToken() == JsonToken.START_ARRAY) state.alerts.add(alert(json));
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        return state;
    }

    private static Round round(JsonParser json) throws IOException {
        Round round = new Round(
                json.nextLongValue(0), json.nextLongValue(0), json.nextBooleanValue(), json.nextBooleanValue(),
                json.nextBooleanValue(), json.nextLongValue(0), json.nextLongValue(0), integer(json), decimal(json),
                integer(json), decimal(json));
        json.nextToken();
        return round;
    }

    private static Alert alert(JsonParser json) throws IOException {
        String check = json.nextTextValue();
        String id = json.nextTextValue();
        String severity = json.nextTextValue();
        json.nextToken();
        List<String> subjects = new ArrayList<>();
        while (json.nextToken() == JsonToken.VALUE_STRING) subjects.add(json.getText());
        Alert alert = new Alert(
                check, id, severity, subjects, json.nextLongValue(0), json.nextLongValue(0), json.nextTextValue(),
                json.nextTextValue());
        json.nextToken();
        return alert;
    }

    private static Long integer(JsonParser json) throws IOException {
        return json.nextToken() == JsonToken.VALUE_NULL ? null : (Long) json.getLongValue();
    }

    private static Double decimal(JsonParser json) throws IOException {
        return json.nextToken() == JsonToken.VALUE_NULL ? null : (Double) json.getDoubleValue();
    }
}
