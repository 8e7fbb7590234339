'use strict';
// The clients of the npm package, driven by lines: {"call": n, "method": name, "arguments": [...]} in,
// {"call": n, "result": ...} or {"call": n, "error": {...}} out. Buffers travel as hex.
//   node client.js FOLDER-OF-NODE_MODULES SECRET
const path = require('path');
const readline = require('readline');
const { createRequire } = require('module');

const [, , folder, secret] = process.argv;
const raft = createRequire(path.join(folder, 'package.json'))('zmq-raft');
const { ZmqRaftClient, ZmqRaftPeerClient, ZmqRaftPeerSub, ZmqRaftSubscriber } = raft.client;
const { UpdateRequest } = raft.common.LogEntry;
const { genIdent } = raft.utils.id;

const REQUEST_MS = 20000; // of a whole call, retries included
const clients = [];
const subscriptions = [];
const writers = [];

const shown = item =>
  item.isSnapshotChunk ? { index: item.logIndex, chunk: item.toString('hex') } : { index: item.logIndex, entry: item.toString('hex') };

// Reads a stream to its end, or until `enough` items came; pauses between items if asked to.
function gathered(stream, { enough = Infinity, pauseMs = 0 } = {}) {
  return new Promise((resolve, reject) => {
    const items = [];
    const done = () => resolve(items);
    stream.on('error', reject);
    stream.on('end', done);
    stream.on('data', item => {
      items.push(shown(item));
      if (items.length >= enough) {
        stream.destroy();
        done();
      } else if (pauseMs) {
        stream.pause();
        setTimeout(() => stream.resume(), pauseMs);
      }
    });
  });
}

const methods = {
  // --- connections: each returns a number that the other methods take first
  client: (urls, options) => clients.push(new ZmqRaftClient(urls, { secret, ...options })) - 1,
  peer: (url, options) => clients.push(new ZmqRaftPeerClient(url, { secret, ...options })) - 1,

  urls: client => Array.from(clients[client].urls),
  config: client => clients[client].requestConfig(REQUEST_MS),
  logInfo: client => clients[client].requestLogInfo(false, REQUEST_MS),
  peerLogInfo: client => clients[client].requestLogInfo(2000),
  newId: () => genIdent('hex'),
  update: (client, id, data) => clients[client].requestUpdate(Buffer.from(id, 'hex'), Buffer.from(data, 'hex'), REQUEST_MS),
  // Many at once; data of the sizes given, byte k in the k-th. Returns [id, index] of each.
  updates: (client, sizes) =>
    Promise.all(
      sizes.map(async (size, k) => {
        const id = genIdent('buffer');
        return [id.toString('hex'), await clients[client].requestUpdate(id, Buffer.alloc(size, k), REQUEST_MS)];
      }),
    ),
  configUpdate: (client, id, peers) => clients[client].configUpdate(Buffer.from(id, 'hex'), peers, REQUEST_MS),
  entries: (client, after, count, pauseMs) =>
    gathered(clients[client].requestEntriesStream(after, { count, timeout: REQUEST_MS }), { pauseMs }),

  // --- a writer: one update after the other until `finish`, which returns [index, data] of each
  write(client, prefix) {
    const writer = { ends: false };
    writer.done = (async () => {
      const written = [];
      while (!writer.ends) {
        const data = Buffer.from(prefix + written.length);
        written.push([await clients[client].requestUpdate(genIdent(), data, REQUEST_MS), data.toString('hex')]);
      }
      return written;
    })();
    writer.done.catch(() => {}); // told by `finish`
    return writers.push(writer) - 1;
  },
  finish: writer => {
    writers[writer].ends = true;
    return writers[writer].done;
  },

  // --- subscriptions
  subscribe(urls, after) {
    const stream = new ZmqRaftSubscriber(urls, { secret, lastIndex: after });
    const seen = { stream, items: [], fresh: 0, errors: [] };
    stream.on('data', item => seen.items.push(shown(item)));
    stream.on('fresh', () => ++seen.fresh);
    stream.on('error', error => seen.errors.push(String(error)));
    return subscriptions.push(seen) - 1;
  },
  follow(url, after) {
    const subscriber = new ZmqRaftPeerSub(url, { secret });
    const stream = subscriber.foreverEntriesStream(after);
    const seen = { stream, items: [], fresh: 0, errors: [] };
    stream.on('data', item => seen.items.push(shown(item)));
    stream.on('fresh', () => ++seen.fresh);
    stream.on('error', error => seen.errors.push(String(error)));
    return subscriptions.push(seen) - 1;
  },
  seen: subscription => {
    const { items, fresh, errors } = subscriptions[subscription];
    return { items, fresh, errors };
  },
  publish: (subscription, id, data) =>
    new Promise((resolve, reject) =>
      subscriptions[subscription].stream.write(new UpdateRequest(Buffer.from(data, 'hex'), Buffer.from(id, 'hex')), error =>
        error ? reject(error) : resolve(true),
      ),
    ),
};

readline.createInterface({ input: process.stdin }).on('line', async line => {
  const { call, method, arguments: given } = JSON.parse(line);
  let said;
  try {
    said = { call, result: (await methods[method](...given)) ?? null };
  } catch (error) {
    const { name, message: text, isPeerNotLeader } = error; // of its prototype
    said = { call, error: { name, text, isPeerNotLeader, ...error } };
  }
  process.stdout.write(JSON.stringify(said) + '\n');
});
process.stdin.on('end', () => process.exit(0));
