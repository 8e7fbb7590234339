'use strict';
// Gives a peer that is down a snapshot, as the package's own compaction would.
//   node snapshot.js FOLDER-OF-NODE_MODULES DATA-FOLDER INDEX TERM TEXT
const path = require('path');
const { createRequire } = require('module');

const [, , folder, data, index, term, text] = process.argv;
const { SnapshotFile } = createRequire(path.join(folder, 'package.json'))('zmq-raft').common;

async function main() {
  const content = Buffer.from(text);
  const snapshot = await new SnapshotFile(path.join(data, 'new'), Number(index), Number(term), content.length).ready();
  await snapshot.write(content, 0, content.length);
  await snapshot.replace(path.join(data, 'snap'));
  await snapshot.close();
}
main().then(() => process.exit(0));
