'use strict';
// Prints "index hex" of every entry in the log folder of a peer that is down, as the package itself reads it.
//   node dump.js FOLDER-OF-NODE_MODULES DATA-FOLDER
const path = require('path');
const { createRequire } = require('module');

const [, , folder, data] = process.argv;
const { FileLog } = createRequire(path.join(folder, 'package.json'))('zmq-raft').server;
const log = new FileLog(path.join(data, 'log'), path.join(data, 'snap'), { readOnly: true });
log.ready().then(async () => {
  const entries = await log.getEntries(log.firstIndex, log.lastIndex);
  entries.forEach((entry, k) => process.stdout.write(`${log.firstIndex + k} ${entry.toString('hex')}\n`));
  await log.close();
});
