// An emitter in Node. `npm install`, then: node emit.mjs HOST:PORT SESSION…
import { randomUUID } from "node:crypto";
import { Kafka, Partitioners } from "kafkajs";

const [broker, ...sessions] = process.argv.slice(2);
const record = (type, session_id, data) => ({
  key: session_id,
  headers: { ce_specversion: "1.0", ce_id: randomUUID(), ce_source: "node", ce_type: `io.compaction_monitor.${type}.v1` },
  value: JSON.stringify({ session_id, agent: "node-example", ...data }),
});
// Java's murmur2 puts a session where the monitor looks for it; idempotent, so that a retry neither doubles nor reorders.
const options = { idempotent: true, maxInFlightRequests: 1, createPartitioner: Partitioners.DefaultPartitioner };
const producer = new Kafka({ clientId: "node-example", brokers: [broker] }).producer(options);
await producer.connect();
for (const id of sessions) {
  const ago = (minutes) => new Date(Date.now() - minutes * 60_000).toISOString();
  const healthy = { raw_tokens: 60_000, summary_tokens: 40_000, distinct_source_spans: 120, query_cosine_retained: 0.45 };
  const inverted = { raw_tokens: 20_000, summary_tokens: 80_000, distinct_source_spans: 80, query_cosine_retained: 0.52 };
  const messages = [
    record("session.started", id, { started_at: ago(3), topology: "tree", source_spans: 200 }),
    record("round.completed", id, { round: 1, at: ago(2), after: { ...healthy, summary_depth_max: 2 } }),
    record("round.completed", id, { round: 2, at: ago(1), after: { ...inverted, summary_depth_max: 2 } }),
  ];
  await producer.send({ topic: process.env.TOPIC ?? "compaction.events", acks: -1, messages });
}
await producer.disconnect();
