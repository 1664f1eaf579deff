import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonGenerator;
import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.math.BigDecimal;
import java.math.RoundingMode;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.time.Instant;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.regex.Matcher;
import java.util.regex.Pattern;
import org.apache.kafka.common.header.Headers;
import org.apache.kafka.common.header.internals.RecordHeaders;

/** What an alert says, and the record it is: `compaction_monitor.checks.evidence`, `loop.step` and `codec.encode`, for alerts. */
final class Findings {
    record Finding(byte[] key, byte[] value, Headers headers) { }

    record Words(String message, String description) { }

    private static final JsonFactory JSON = new JsonFactory();
    private static final UUID URL_NAMESPACE = UUID.fromString("6ba7b811-9dad-11d1-80b4-00c04fd430c8");
    private static final UUID NAMESPACE = uuid5(URL_NAMESPACE, "io.compaction_monitor");
    private static final Pattern FIELD = Pattern.compile("\\{(\\w+)(?::\\.(\\d)f)?}");

    private final Map<String, Words> words = new LinkedHashMap<>();
    private final String runbookUrl;

    /** The texts come from Python, so that both publish the same. */
    Findings(JsonNode texts) {
        runbookUrl = texts.get("runbook_url").asText();
        texts.get("words").fields().forEachRemaining(entry -> words.put(
                entry.getKey(), new Words(entry.getValue().get(0).asText(), entry.getValue().get(1).asText())));
    }

    static double rounded(double value, int digits) {
        return new BigDecimal(value).setScale(digits, RoundingMode.HALF_EVEN).doubleValue();
    }

    static String findingId(String session, String check, String openedBy) {
        return derived(session, check, "", openedBy, "0");
    }

    private static String derived(String... parts) {
        StringBuilder name = new StringBuilder();
        for (String part : parts) name.append(part.codePointCount(0, part.length())).append(':').append(part);
        return uuid5(NAMESPACE, name.toString()).toString();
    }

    private static UUID uuid5(UUID namespace, String name) {
        byte[] text = name.getBytes(StandardCharsets.UTF_8);
        ByteBuffer input = ByteBuffer.allocate(16 + text.length);
        input.putLong(namespace.getMostSignificantBits()).putLong(namespace.getLeastSignificantBits()).put(text);
        try {
            ByteBuffer hash = ByteBuffer.wrap(MessageDigest.getInstance("SHA-1").digest(input.array()));
            long high = hash.getLong() & 0xffffffffffff0fffL | 0x5000L;
            long low = hash.getLong() & 0x3fffffffffffffffL | 0x8000000000000000L;
            return new UUID(high, low);
        } catch (NoSuchAlgorithmException error) {
            throw new IllegalStateException(error);
        }
    }

    Map<String, Object> evidence(String check, State session, Contract.Event event) {
        State.Round now = session.last();
        State.Round before = session.window.size() > 1 ? session.window.get(session.window.size() - 2) : null;
        Map<String, Object> found = new LinkedHashMap<>();
        found.put("round", now.number());
        found.put("raw_ratio", rounded(now.rawRatio(), 4));
        found.put("raw_tokens", now.raw());
        found.put("summary_tokens", now.summary());
        found.put("spans", now.spans());
        found.put("cosine", now.cosine());
        found.put("depth", now.depth());
        found.put("previous_round", before == null ? null : before.number());
        found.put("previous_raw_ratio", before == null ? null : rounded(before.rawRatio(), 4));
        found.put("previous_spans", before == null ? null : before.spans());
        found.put("previous_cosine", before == null ? null : before.cosine());
        found.put("recency_decay", session.recencyDecay);
        found.put("complete", session.complete && session.topology != null && !session.gap);
        switch (check) {
            case "salience_inversion" -> {
                found.put("raw_ratio_floor", Checks.FLOOR);
                found.put("raw_ratio_recovered", Checks.RECOVERED);
            }
            case "provenance_floor" -> floor(found, session, event);
            case "inversion_risk" -> risk(found, session);
            case "drift" -> {
                found.put("raw_ratio_floor", Checks.FLOOR);
                found.put("no_inversion_because", Checks.driftCause(session));
            }
            case "depth_pinned" -> {
                found.put("rounds_at_depth", session.pinned);
                found.put("pinned_rounds", Checks.PINNED_ROUNDS);
                found.put("deepest_allowed", Checks.deepestAllowed(session));
                found.put("max_depth_known", session.maxDepth != null);
                found.put("window_first_spans", session.window.get(0).spans());
            }
            case "orphaned_summary" -> {
                int orphaned = 0;
                int all = event.summaries == null ? 0 : event.summaries.length;
                for (int at = 0; at < all; at++) orphaned += event.summaries[at].leafSpans == 0 ? 1 : 0;
                found.put("orphaned", orphaned);
                found.put("summaries", event.summariesTotal == null ? (Object) all : event.summariesTotal);
            }
            case "coverage_gap" -> {
                found.put("claimed_records", event.claimed);
                found.put("read_records", event.read);
                found.put("coverage_floor", Checks.COVERAGE);
            }
            case "summary_failed" -> {
                found.put("summary_kind", event.summaryKind);
                found.put("failed_in_a_row", session.failed);
            }
            case "compaction_thrash" -> {
                found.put("token_budget", session.tokenBudget);
                found.put("full_ratio", now.fullRatio() == null ? null : rounded(now.fullRatio(), 4));
                found.put("stays_full", Checks.staysFull(session));
                found.put("bursts", Checks.bursts(session));
                found.put("thrash_full_ratio", Checks.FULL);
                found.put("thrash_burst_s", Checks.BURST_US / 1e6);
            }
            default -> throw new IllegalArgumentException(check);
        }
        found.values().removeIf(java.util.Objects::isNull);
        return found;
    }

    private static void floor(Map<String, Object> found, State session, Contract.Event event) {
        if (!"chain".equals(session.topology)) {
            found.put("span_floor", Checks.spanFloor(session));
            found.put("source_spans", session.sourceSpans);
            return;
        }
        Long before = event.before == null ? null : event.before.spans;
        Long kept = session.last().spans();
        found.put("span_floor_fraction", Checks.SPAN_FLOOR);
        found.put("spans_before_pass", before);
        boolean known = before != null && before != 0 && kept != null;
        found.put("spans_kept_fraction", known ? (Object) rounded((double) kept / before, 4) : null);
        found.put("source_spans_seen", event.spansSeen);
    }

    private static void risk(Map<String, Object> found, State session) {
        State.Round first = session.window.get(0);
        State.Round now = session.last();
        double slope = (now.rawRatio() - first.rawRatio()) / Math.max(1, now.number() - first.number());
        double toGo = now.rawRatio() - Checks.FLOOR;
        found.put("risk_below_ratio", Checks.RISK_BELOW);
        found.put("window_first_round", first.number());
        found.put("window_first_raw_ratio", rounded(first.rawRatio(), 4));
        found.put("window_first_spans", first.spans());
        found.put("raw_ratio_per_round", rounded(slope, 4));
        Long left = slope < 0 ? (Long) (long) Math.ceil(rounded(toGo / -slope, 6)) : null;
        found.put("rounds_left", toGo <= 0 ? (Long) 0L : left);
    }

    Finding raised(Fold fold, State.Alert alert, Map<String, Object> evidence) {
        String message = filled(words.get(alert.check()).message(), evidence);
        return record(fold, alert, "alert.raised", "firing", message, evidence, null, null);
    }

    Finding resolved(Fold fold, State.Alert alert, String because, Map<String, Object> evidence, String supersededBy) {
        String message = alert.check() + " is over: " + because;
        return record(fold, alert, "alert.resolved", "resolved", message, evidence, because, supersededBy);
    }

    /** The part of Python's format strings that the messages use. */
    private static String filled(String message, Map<String, Object> values) {
        return FIELD.matcher(message).replaceAll(field -> {
            Object value = values.get(field.group(1));
            String text = String.valueOf(value);
            if (field.group(2) != null) {
                int digits = Integer.parseInt(field.group(2));
                text = new BigDecimal(((Number) value).doubleValue()).setScale(digits, RoundingMode.HALF_EVEN).toPlainString();
            } else if (value instanceof Boolean flag) {
                text = flag ? "True" : "False";
            }
            return Matcher.quoteReplacement(text);
        });
    }

    private Finding record(
            Fold fold, State.Alert alert, String type, String status, String message, Map<String, Object> evidence,
            String because, String supersededBy) {
        ByteArrayOutputStream out = new ByteArrayOutputStream(1024);
        String received = moment(fold.atUs);
        try (JsonGenerator json = JSON.createGenerator(out)) {
            json.writeStartObject();
            json.writeStringField("type", type);
            json.writeStringField("session_id", fold.sessionId);
            json.writeStringField("id", alert.id());
            json.writeStringField("name", alert.check());
            json.writeStringField("status", status);
            json.writeStringField("severity", alert.severity());
            json.writeStringField("agent", fold.session.agent);
            strings(json, "subjects", alert.subjects());
            json.writeStringField("startsAt", moment(alert.startedAtUs()));
            json.writeStringField("lastReceived", received);
            json.writeStringField("fingerprint", alert.id());
            json.writeStringField("service", fold.session.agent);
            strings(json, "source", List.of("compaction-monitor"));
            json.writeStringField("message", message);
            json.writeStringField("description", words.get(alert.check()).description());
            json.writeObjectFieldStart("evidence");
            for (Map.Entry<String, Object> entry : evidence.entrySet()) value(json, entry.getKey(), entry.getValue());
            json.writeEndObject();
            json.writeStringField("basis", alert.basis());
            json.writeNumberField("attempt", alert.attempt());
            if (supersededBy != null) json.writeStringField("superseded_by", supersededBy);
            if (because != null) json.writeStringField("resolved_because", because);
            json.writeStringField("url", runbookUrl + alert.check());
            json.writeEndObject();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
        byte[] session = bytes(fold.sessionId);
        Headers headers = new RecordHeaders();
        headers.add("ce_specversion", bytes("1.0"));
        headers.add("ce_id", bytes(derived(alert.id(), type, Long.toString(alert.attempt()))));
        headers.add("ce_source", bytes("compaction-monitor"));
        headers.add("ce_type", bytes("io.compaction_monitor." + type + ".v1"));
        headers.add("ce_subject", session);
        headers.add("content-type", bytes("application/json"));
        headers.add("ce_time", bytes(received));
        if (fold.traceparent != null) headers.add("traceparent", fold.traceparent);
        return new Finding(session, out.toByteArray(), headers);
    }

    private static void strings(JsonGenerator json, String name, List<String> values) throws IOException {
        json.writeArrayFieldStart(name);
        for (String value : values) json.writeString(value);
        json.writeEndArray();
    }

    private static void value(JsonGenerator json, String name, Object value) throws IOException {
        json.writeFieldName(name);
        if (value instanceof Long number) json.writeNumber(number);
        else if (value instanceof Integer number) json.writeNumber(number);
        else if (value instanceof Double number) json.writeNumber(number);
        else if (value instanceof Boolean flag) json.writeBoolean(flag);
        else json.writeString((String) value);
    }

    private static String moment(long atUs) {
        String text = Instant.ofEpochSecond(Math.floorDiv(atUs, 1_000_000L)).toString();
        long rest = Math.floorMod(atUs, 1_000_000L);
        return rest == 0 ? text : text.substring(0, text.length() - 1) + String.format(".%06dZ", rest);
    }

    private static byte[] bytes(String text) {
        return text.getBytes(StandardCharsets.UTF_8);
    }

    static JsonNode tree(byte[] json) {
        try {
            return new ObjectMapper().readTree(json);
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
