import com.fasterxml.jackson.core.JsonFactory;
import com.fasterxml.jackson.core.JsonParser;
import com.fasterxml.jackson.core.JsonToken;
import com.fasterxml.jackson.core.StreamReadConstraints;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.time.DateTimeException;
import java.time.OffsetDateTime;
import java.util.Set;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.header.Headers;

/** A `round.completed` record, validated against the contract: what `compaction_events.codec.decode` does for this type. */
final class Contract {
    /** The sender's fault. */
    static final class Refused extends Exception {
        Refused(String why) {
            super(why, null, false, false);
        }
    }

    static final class Composition {
        long raw = -1;
        long summary = -1;
        Long spans;
        Double cosine;
        Long depth;
    }

    static final class Summary {
        String id;
        long depth = -1;
        long tokens = -1;
        long leafSpans = -1;
        long expanded = -1;
    }

    static final class Event {
        String sessionId;
        String agent;
        long round = -1;
        long atUs = Long.MIN_VALUE;
        String cause = "compaction";
        String trigger;
        Composition before;
        Composition after;
        String topology;
        Long maxDepth;
        Long tokenBudget;
        Long spansSeen;
        String spansMethod;
        Summary[] summaries;
        Long summariesTotal;
        Long claimed;
        Long read;
        String summaryKind;
        boolean propositions;
        String basis = "measured";
        String ceId;
        byte[] traceparent;

        boolean compaction() {
            return cause.equals("compaction");
        }
    }

    private static final int MAX_RECORD_BYTES = 256 * 1024;
    private static final int MAX_ID_CHARS = 256;
    private static final int MAX_SUMMARIES = 512;
    private static final int MAX_PROPOSITIONS = 1_000;
    private static final long MAX_COUNT = 1L << 53;
    private static final byte[] CE_TYPE = "io.compaction_monitor.round.completed.v1".getBytes(StandardCharsets.UTF_8);
    private static final long FIRST_US = OffsetDateTime.parse("2000-01-01T00:00:00Z").toEpochSecond() * 1_000_000;
    private static final long LAST_US = OffsetDateTime.parse("2200-01-01T00:00:00Z").toEpochSecond() * 1_000_000;
    private static final Set<String> CAUSES = Set.of("compaction", "rehydration");
    private static final Set<String> TRIGGERS = Set.of("budget", "turns", "events", "manual");
    private static final Set<String> TOPOLOGIES = Set.of("tree", "chain", "flat");
    private static final Set<String> METHODS = Set.of("pointer", "lexical");
    private static final Set<String> KINDS = Set.of("ok", "fallback", "error", "empty", "none");
    private static final Set<String> BASES = Set.of("measured", "inferred");
    private static final JsonFactory JSON =
            JsonFactory.builder().streamReadConstraints(StreamReadConstraints.defaults()).build();

    private final JsonParser parser;

    private Contract(JsonParser parser) {
        this.parser = parser;
    }

    static Event decode(byte[] key, byte[] value, Headers headers) throws Refused {
        if (value == null || value.length == 0) throw new Refused("empty_value");
        if (value.length > MAX_RECORD_BYTES) throw new Refused("record_too_large");
        byte[] type = null;
        byte[] id = null;
        byte[] traceparent = null;
        for (Header header : headers) {
            switch (header.key()) {
                case "ce_type" -> type = header.value();
                case "ce_id" -> id = header.value();
                case "traceparent" -> traceparent = header.value();
                default -> { }
            }
        }
        if (!java.util.Arrays.equals(type, CE_TYPE)) throw new Refused("unknown_type");
        if (id == null || id.length == 0) throw new Refused("bad_headers");
        Event event;
        try (JsonParser parser = JSON.createParser(value)) {
            event = new Contract(parser).event();
        } catch (IOException error) {
            throw new Refused("not_json");
        }
        if (key == null || !java.util.Arrays.equals(key, event.sessionId.getBytes(StandardCharsets.UTF_8))) {
            throw new Refused("wrong_key");
        }
        event.ceId = new String(id, StandardCharsets.UTF_8);
        if (event.ceId.length() > MAX_ID_CHARS) throw new Refused("bad_headers");
        event.traceparent = traceparent != null && traceparent.length > 0 && traceparent.length <= 256 ? traceparent : null;
        return event;
    }

    private Event event() throws IOException, Refused {
        Event event = new Event();
        if (parser.nextToken() != JsonToken.START_OBJECT) throw new Refused("not_json");
        while (parser.nextToken() != JsonToken.END_OBJECT) {
            String name = parser.currentName();
            JsonToken token = parser.nextToken();
            switch (name) {
                case "type" -> {
                    if (!"round.completed".equals(text(token))) throw new Refused("invalid_field");
                }
                case "session_id" -> event.sessionId = id(token);
                case "agent" -> event.agent = id(token);
                case "round" -> event.round = count(token);
                case "at" -> event.atUs = time(text(token));
                case "cause" -> event.cause = word(token, CAUSES);
                case "trigger" -> event.trigger = absent(token) ? null : word(token, TRIGGERS);
                case "before" -> event.before = absent(token) ? null : composition(token);
                case "after" -> event.after = composition(token);
                case "topology" -> event.topology = absent(token) ? null : word(token, TOPOLOGIES);
                case "max_depth" -> event.maxDepth = absent(token) ? null : (Long) count(token);
                case "token_budget" -> event.tokenBudget = absent(token) ? null : (Long) count(token);
                case "source_spans_seen" -> event.spansSeen = absent(token) ? null : (Long) count(token);
                case "spans_method" -> event.spansMethod = absent(token) ? null : word(token, METHODS);
                case "summaries" -> event.summaries = absent(token) ? null : summaries(token);
                case "summaries_total" -> event.summariesTotal = absent(token) ? null : (Long) count(token);
                case "claimed_records" -> event.claimed = absent(token) ? null : (Long) count(token);
                case "read_records" -> event.read = absent(token) ? null : (Long) count(token);
                case "summary_kind" -> event.summaryKind = absent(token) ? null : word(token, KINDS);
                case "propositions_retained" -> event.propositions = !absent(token) && propositions(token);
                case "token_method", "remediation_id" -> {
                    if (!absent(token)) id(token);
                }
                case "basis" -> event.basis = word(token, BASES);
                default -> parser.skipChildren();
            }
        }
        if (parser.nextToken() != null) throw new Refused("not_json");
        boolean whole = event.sessionId != null && event.agent != null && event.round >= 0 && event.after != null;
        if (!whole || event.atUs == Long.MIN_VALUE) throw new Refused("invalid_field");
        return event;
    }

    private Composition composition(JsonToken first) throws IOException, Refused {
        if (first != JsonToken.START_OBJECT) throw new Refused("invalid_field");
        Composition found = new Composition();
        while (parser.nextToken() != JsonToken.END_OBJECT) {
            String name = parser.currentName();
            JsonToken token = parser.nextToken();
            switch (name) {
                case "raw_tokens" -> found.raw = count(token);
                case "summary_tokens" -> found.summary = count(token);
                case "overhead_tokens" -> {
                    if (!absent(token)) count(token);
                }
                case "distinct_source_spans" -> found.spans = absent(token) ? null : (Long) count(token);
                case "query_cosine_retained" -> found.cosine = absent(token) ? null : (Double) cosine(token);
                case "summary_depth_max" -> found.depth = absent(token) ? null : (Long) count(token);
                default -> parser.skipChildren();
            }
        }
        if (found.raw < 0 || found.summary < 0) throw new Refused("invalid_field");
        return found;
    }

    private Summary[] summaries(JsonToken first) throws IOException, Refused {
        if (first != JsonToken.START_ARRAY) throw new Refused("invalid_field");
        java.util.ArrayList<Summary> found = new java.util.ArrayList<>();
        JsonToken token;
        while ((token = parser.nextToken()) != JsonToken.END_ARRAY) {
            if (token != JsonToken.START_OBJECT || found.size() == MAX_SUMMARIES) throw new Refused("invalid_field");
            Summary item = new Summary();
            while (parser.nextToken() != JsonToken.END_OBJECT) {
                String name = parser.currentName();
                JsonToken value = parser.nextToken();
                switch (name) {
                    case "summary_id" -> item.id = id(value);
                    case "depth" -> item.depth = count(value);
                    case "tokens" -> item.tokens = count(value);
                    case "leaf_spans" -> item.leafSpans = count(value);
                    case "expanded_tokens" -> item.expanded = count(value);
                    default -> parser.skipChildren();
                }
            }
            boolean whole = item.id != null && item.depth >= 0 && item.tokens >= 0 && item.leafSpans >= 0;
            if (!whole || item.expanded < 0) throw new Refused("invalid_field");
            found.add(item);
        }
        return found.toArray(new Summary[0]);
    }

    private boolean propositions(JsonToken first) throws IOException, Refused {
        if (first != JsonToken.START_ARRAY) throw new Refused("invalid_field");
        int found = 0;
        JsonToken token;
        while ((token = parser.nextToken()) != JsonToken.END_ARRAY) {
            id(token);
            if (++found > MAX_PROPOSITIONS) throw new Refused("invalid_field");
        }
        return true;
    }

    private static boolean absent(JsonToken token) {
        return token == JsonToken.VALUE_NULL;
    }

    private String text(JsonToken token) throws IOException, Refused {
        if (token != JsonToken.VALUE_STRING) throw new Refused("invalid_field");
        return parser.getText();
    }

    private String id(JsonToken token) throws IOException, Refused {
        String found = text(token);
        if (found.isEmpty() || found.codePointCount(0, found.length()) > MAX_ID_CHARS) throw new Refused("invalid_field");
        return found;
    }

    private String word(JsonToken token, Set<String> known) throws IOException, Refused {
        String found = text(token);
        return known.contains(found) ? found : "other";
    }

    private long count(JsonToken token) throws IOException, Refused {
        if (token != JsonToken.VALUE_NUMBER_INT) throw new Refused("invalid_field");
        long found = parser.getLongValue();
        if (found < 0 || found > MAX_COUNT) throw new Refused("invalid_field");
        return found;
    }

    private double cosine(JsonToken token) throws IOException, Refused {
        if (token != JsonToken.VALUE_NUMBER_INT && token != JsonToken.VALUE_NUMBER_FLOAT) throw new Refused("invalid_field");
        double found = parser.getDoubleValue();
        if (!(found >= -1 && found <= 1)) throw new Refused("invalid_field");
        return found;
    }

    private static long time(String text) throws Refused {
        long us;
        try {
            OffsetDateTime at = OffsetDateTime.parse(text);
            us = at.toEpochSecond() * 1_000_000 + at.getNano() / 1_000;
        } catch (DateTimeException error) {
            throw new Refused("invalid_field");
        }
        if (us < FIRST_US || us >= LAST_US) throw new Refused("invalid_field");
        return us;
    }
}
