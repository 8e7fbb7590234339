'use strict';
// The client of npm's zmq-raft under measure, driven by lines: {"method": name, "arguments": [...]} in, one result out.
//   node zmq_raft_client.js FOLDER-OF-NODE_MODULES SECRET URL,URL,…
const path = require('path');
const readline = require('readline');
const { createRequire } = require('module');

const [, , folder, secret, urls] = process.argv;
const raft = createRequire(path.join(folder, 'package.json'))('zmq-raft');
const { genIdent } = raft.utils.id;
const TIMEOUT_MS = 60000;
const client = new raft.client.ZmqRaftClient(urls.split(','), { secret, highwatermark: 1000 }); // its fastest setting
const nowMs = () => Number(process.hrtime.bigint()) / 1e6;
const update = data => client.requestUpdate(genIdent('buffer'), data, TIMEOUT_MS);

const methods = {
  // Milliseconds of `count` updates, one after the other.
  async sequential(count, size) {
    const data = Buffer.alloc(size);
    const times = [];
    for (let k = 0; k < count; k++) {
      const began = nowMs();
      await update(data);
      times.push(nowMs() - began);
    }
    return times;
  },
  // Seconds that `count` updates take, `inFlight` of them under way at any time.
  async bulk(count, inFlight, size) {
    const data = Buffer.alloc(size);
    let left = count;
    const work = async () => {
      while (left-- > 0) await update(data);
    };
    const began = nowMs();
    await Promise.all(Array.from({ length: inFlight }, work));
    return (nowMs() - began) / 1000;
  },
  // Entries of the whole log, and the seconds that reading it takes.
  async read() {
    let count = 0;
    const began = nowMs();
    await client.requestEntries(0, (status, entries) => void (count += entries.length), TIMEOUT_MS);
    return [count, (nowMs() - began) / 1000];
  },
};

readline.createInterface({ input: process.stdin }).on('line', async line => {
  const { method, arguments: given } = JSON.parse(line);
  const result = await methods[method](...given);
  process.stdout.write(JSON.stringify(result) + '\n');
});
process.stdin.on('end', () => process.exit(0));
