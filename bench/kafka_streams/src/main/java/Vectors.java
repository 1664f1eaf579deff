import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.header.internals.RecordHeaders;

/** What Python made of some thousand records, against what this port makes of them: all of it has to be equal. */
final class Vectors {
    private Vectors() { }

    /** Returns the texts of the alerts, which the file begins with. */
    static Findings verified(Path file) throws IOException {
        List<String> lines = Files.readAllLines(file);
        ObjectMapper json = new ObjectMapper();
        Findings texts = new Findings(json.readTree(lines.get(0)));
        Map<String, byte[]> rows = new HashMap<>();
        for (String line : lines.subList(1, lines.size())) {
            JsonNode vector = json.readTree(line);
            String wrong = difference(vector, texts, rows);
            if (wrong != null) throw new IllegalStateException("not what Python makes of it: " + wrong + "\n" + line);
        }
        return texts;
    }

    private static String difference(JsonNode vector, Findings texts, Map<String, byte[]> rows) {
        RecordHeaders headers = new RecordHeaders();
        vector.get("headers").fields().forEachRemaining(header -> headers.add(header.getKey(), bytes(header.getValue())));
        String key = vector.get("key").asText();
        Contract.Event event;
        try {
            event = Contract.decode(bytes(vector.get("key")), bytes(vector.get("value")), headers);
        } catch (Contract.Refused refused) {
            return vector.get("refused").asBoolean() ? null : "refused, " + refused.getMessage();
        }
        if (vector.get("refused").asBoolean()) return "not refused";
        byte[] row = rows.get(key);
        Fold fold = new Fold(texts, new HashMap<>());
        fold.apply(row == null ? null : State.fromBytes(row), event, vector.get("timestamp").asLong());
        rows.put(key, fold.session.toBytes());
        JsonNode state = Findings.tree(rows.get(key));
        if (!same(state, vector.get("state"))) return "state " + state;
        if (fold.findings.size() != vector.get("findings").size()) return "so many findings: " + fold.findings.size();
        for (int at = 0; at < fold.findings.size(); at++) {
            Findings.Finding finding = fold.findings.get(at);
            JsonNode wanted = vector.get("findings").get(at);
            JsonNode value = Findings.tree(finding.value());
            if (!same(value, wanted.get("value"))) return "finding " + value;
            String id = new String(finding.headers().lastHeader("ce_id").value(), StandardCharsets.UTF_8);
            if (!id.equals(wanted.get("ce_id").asText())) return "ce_id " + id;
        }
        return null;
    }

    private static byte[] bytes(JsonNode text) {
        return text.asText().getBytes(StandardCharsets.UTF_8);
    }

    /** Equal as JSON, where 1 and 1.0 are the same number. */
    private static boolean same(JsonNode a, JsonNode b) {
        if (a.isNumber() && b.isNumber()) return a.doubleValue() == b.doubleValue();
        if (a.isObject() && b.isObject()) {
            if (a.size() != b.size()) return false;
            for (Map.Entry<String, JsonNode> field : a.properties()) {
                JsonNode other = b.get(field.getKey());
                if (other == null || !same(field.getValue(), other)) return false;
            }
            return true;
        }
        if (a.isArray() && b.isArray()) {
            if (a.size() != b.size()) return false;
            for (int at = 0; at < a.size(); at++) if (!same(a.get(at), b.get(at))) return false;
            return true;
        }
        return a.equals(b);
    }
}
