// What a program with KafkaJS sees at SERVER: prints a line of JSON for each step. node kafkajs.js SERVER
const { Kafka, CompressionTypes, logLevel } = require("kafkajs");

const TOPIC = "orders", GROUP = "billing", PARTITIONS = 3, COUNT = 30, FIRST_MS = 1767225600000;
const kafka = new Kafka({ brokers: [process.argv[2]], logLevel: logLevel.NOTHING });
const say = (step, value) => console.log(JSON.stringify([step, value]));
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

async function until(isSo) {
  while (!(await isSo())) await pause(20);
}

function messages(first) {
  return Array.from({ length: COUNT }, (_, at) => first + at).map((number) => ({
    key: `key ${number}`,
    value: `value ${number}`,
    headers: { number: `${number}` },
    partition: number % PARTITIONS,
    timestamp: `${FIRST_MS + 1000 * number}`,
  }));
}

async function member(found, owned) {
  const consumer = kafka.consumer({ groupId: GROUP, sessionTimeout: 10000, heartbeatInterval: 100 });
  consumer.on(consumer.events.GROUP_JOIN, ({ payload }) => {
    owned.count = (payload.memberAssignment[TOPIC] || []).length;
  });
  await consumer.connect();
  await consumer.subscribe({ topic: TOPIC, fromBeginning: true });
  await consumer.run({
    autoCommitInterval: 50,
    eachMessage: async ({ partition, message }) => {
      found.push([
        partition, Number(message.offset), `${message.key}`, `${message.value}`,
        `${message.headers.number}`, Number(message.timestamp),
      ]);
    },
  });
  return consumer;
}

async function main() {
  const admin = kafka.admin();
  await admin.connect();
  const topics = async () => (await admin.listTopics()).filter((name) => !name.startsWith("__")).sort();
  say("created", await admin.createTopics({ topics: [{ topic: TOPIC, numPartitions: PARTITIONS }] }));
  say("created again", await admin.createTopics({ topics: [{ topic: TOPIC, numPartitions: PARTITIONS }] }));
  say("topics", await topics());
  const { topics: [described] } = await admin.fetchTopicMetadata({ topics: [TOPIC] });
  say("partitions", described.partitions.map((one) => one.partitionId).sort());

  const producer = kafka.producer({ idempotent: true, maxInFlightRequests: 1 });
  await producer.connect();
  const send = (first, compression) => producer.send({ topic: TOPIC, messages: messages(first), compression });
  const sent = await send(0, CompressionTypes.GZIP);
  say("sent", sent.map((one) => [one.partition, one.errorCode, one.baseOffset]).sort());

  const offsets = (found) => found.map((one) => [one.partition, one.offset, one.high, one.low]).sort();
  say("ends", offsets(await admin.fetchTopicOffsets(TOPIC)));
  say("offsets at a time", offsets(await admin.fetchTopicOffsetsByTimestamp(TOPIC, FIRST_MS + 10500)));

  const found = [], one = {}, two = {};
  const first = await member(found, one);
  await until(() => found.length >= COUNT);
  say("alone", one.count);
  const second = await member(found, two);
  await until(() => one.count + two.count === PARTITIONS && one.count && two.count);
  say("shared", [one.count, two.count].sort());
  await send(COUNT, CompressionTypes.None);
  await until(() => found.length >= 2 * COUNT);
  say("read", found.sort((a, b) => a[0] - b[0] || a[1] - b[1]));
  const { groups: [group] } = await admin.describeGroups([GROUP]);
  say("group", [group.state, group.protocolType, group.members.length]);
  await second.disconnect();
  await until(() => one.count === PARTITIONS);
  await first.disconnect();
  const { groups: [left] } = await admin.describeGroups([GROUP]);
  say("left", [left.state, left.members.length]);
  const [committed] = await admin.fetchOffsets({ groupId: GROUP, topics: [TOPIC] });
  say("committed", committed.partitions.map((each) => [each.partition, each.offset]).sort());

  await admin.deleteTopicRecords({ topic: TOPIC, partitions: [{ partition: 1, offset: "5" }] });
  say("after delete-records", offsets(await admin.fetchTopicOffsets(TOPIC)));
  await admin.createPartitions({ topicPartitions: [{ topic: TOPIC, count: PARTITIONS + 1 }] });
  say("partitions added", (await admin.fetchTopicOffsets(TOPIC)).length);
  await admin.deleteGroups([GROUP]);
  say("groups", (await admin.listGroups()).groups.map((each) => each.groupId));
  await admin.deleteTopics({ topics: [TOPIC] });
  await until(async () => !(await topics()).length);
  say("topics", await topics());
  await Promise.all([producer.disconnect(), admin.disconnect()]);
}

main().catch((error) => { say("failed", `${error.name}: ${error.message}`); process.exit(1); });
