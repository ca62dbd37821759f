// The script of test_node_amqplib.py: argv[2] is the URL, argv[3] the folder that holds node_modules/amqplib.
// Prints one JSON line {"ok": [names of the checks that passed]} and exits 0, or the error and exits 1.
'use strict';
const assert = require('assert');
const path = require('path');
const amqp = require(path.join(process.argv[3], 'node_modules', 'amqplib'));

const url = process.argv[2];
const ok = [];
const soon = () => new Promise((resolve) => setTimeout(resolve, 10));
async function until(condition) {
  for (let i = 0; i < 6000; i++) {
    const value = await condition();
    if (value) return value;
    await soon();
  }
  throw new Error('waited in vain');
}

async function main() {
  const connection = await amqp.connect(url + '?heartbeat=2');
  const channel = await connection.createChannel();
  const { queue } = await channel.assertQueue('node-' + process.pid + '-' + Date.now(), { exclusive: true });

  // publish, prefetch, consume, ack, nack
  await channel.prefetch(5);
  const seen = [];
  await channel.consume(queue, (message) => {
    seen.push([message.content.toString(), message.fields.redelivered]);
    if (message.content.toString() === '7' && !message.fields.redelivered) channel.nack(message, false, true);
    else channel.ack(message);
  }, { consumerTag: 'c' });
  for (let i = 0; i < 50; i++) channel.sendToQueue(queue, Buffer.from(String(i)), { persistent: true, headers: { n: i, deep: { x: [1, true, null] } } });
  await until(() => seen.length === 51);
  assert.deepStrictEqual(seen.filter((s) => s[1]), [['7', true]]);
  await channel.cancel('c');
  ok.push('consume');

  // returns
  const returned = [];
  channel.on('return', (message) => returned.push(message.fields.replyText));
  channel.publish('amq.direct', 'nowhere', Buffer.from('x'), { mandatory: true });
  await until(() => returned.length === 1);
  assert.strictEqual(returned[0], 'NO_ROUTE');
  ok.push('return');

  // confirms
  const confirming = await connection.createConfirmChannel();
  for (let i = 0; i < 200; i++) confirming.sendToQueue(queue, Buffer.from('c'));
  await confirming.waitForConfirms();
  ok.push('confirm');
  await until(async () => (await channel.checkQueue(queue)).messageCount === 200);
  assert.strictEqual((await channel.purgeQueue(queue)).messageCount, 200);

  // get, reject, recover
  channel.sendToQueue(queue, Buffer.from('g'));
  let message = await until(() => channel.get(queue));
  channel.reject(message, true);
  message = await until(() => channel.get(queue));
  assert.ok(message.fields.redelivered);
  await channel.recover();
  message = await until(() => channel.get(queue));
  channel.ackAll();
  assert.strictEqual(await channel.get(queue), false);
  ok.push('get', 'recover');

  // direct reply-to
  const replies = [];
  await channel.consume('amq.rabbitmq.reply-to', (m) => replies.push(m.content.toString()), { noAck: true });
  channel.sendToQueue(queue, Buffer.from('ask'), { replyTo: 'amq.rabbitmq.reply-to' });
  const request = await until(() => channel.get(queue, { noAck: true }));
  channel.sendToQueue(request.properties.replyTo, Buffer.from('answer'));
  await until(() => replies.length === 1);
  assert.strictEqual(replies[0], 'answer');
  ok.push('reply-to');

  // exchanges, e2e binding, 3 MiB
  await channel.assertExchange(queue + '-o', 'topic', { autoDelete: true });
  await channel.assertExchange(queue + '-i', 'headers', { autoDelete: true });
  await channel.bindExchange(queue + '-i', queue + '-o', 'a.*');
  await channel.bindQueue(queue, queue + '-i', '', { 'x-match': 'any', h: 'yes' });
  const body = Buffer.alloc(3 << 20, 'abcdefg');
  channel.publish(queue + '-o', 'a.b', body, { headers: { h: 'yes' } });
  message = await until(() => channel.get(queue, { noAck: true }));
  assert.ok(message.content.equals(body));
  ok.push('large');

  // a content header above this connection's frameMax
  const small = await amqp.connect(url + '?frameMax=4096');
  const reader = await small.createChannel();
  const sizes = [];
  await reader.assertQueue(queue + '-small', { autoDelete: true });
  for (const size of [20000, 1]) channel.sendToQueue(queue + '-small', Buffer.alloc(10000), { headers: { h: 'x'.repeat(size) } });
  await reader.consume(queue + '-small', (m) => {
    assert.strictEqual(m.content.length, 10000);
    sizes.push(m.properties.headers.h.length);
    reader.ack(m);
  });
  await until(() => sizes.length === 2);
  assert.deepStrictEqual(sizes, [20000, 1]);
  await small.close();
  ok.push('large headers');

  // cancel notification
  const other = await connection.createChannel();
  await other.assertQueue(queue + '-gone');
  let cancelled = false;
  await channel.consume(queue + '-gone', (m) => { if (m === null) cancelled = true; });
  await other.deleteQueue(queue + '-gone');
  await until(() => cancelled);
  ok.push('cancel');

  // errors
  const failing = await connection.createChannel();
  failing.on('error', () => {});
  await assert.rejects(failing.checkQueue('no-such-queue'), /404.*NOT_FOUND - no queue 'no-such-queue' in vhost '\/'/);
  const failing2 = await connection.createChannel();
  failing2.on('error', () => {});
  await assert.rejects(failing2.assertExchange('amq.direct', 'topic'), /406.*PRECONDITION_FAILED - inequivalent arg 'type'/);
  await assert.rejects(amqp.connect(url.replace('guest:guest', 'guest:wrong')), /ACCESS_REFUSED|403/);
  ok.push('errors');

  // heartbeats: longer than two intervals of silence
  await new Promise((resolve) => setTimeout(resolve, 4500));
  await channel.checkQueue(queue);
  ok.push('heartbeat');
  await connection.close();
  console.log(JSON.stringify({ ok }));
}

main().catch((error) => {
  console.error(error);
  process.exit(1);
});
