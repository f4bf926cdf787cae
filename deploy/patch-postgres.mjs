/**
 * Repairs postgres.js 3.4.9 where the loss of PostgreSQL, or a full pipeline, takes the process down, leaves
 * queries without an answer, or runs a dead transaction's statements inside a living one. Run by npm's
 * `postinstall`, so it is JavaScript for whatever Node the machine has. Upstream, open when this was written: issues
 * 1066, 1154, 1186, 1193, 1208, pull requests 1168, 1209, 1215 of github.com/porsager/postgres; the full pipeline
 * was found here.
 * Not repaired, because nothing here uses them: sql.reserve(), COPY streams and several hosts in one URL.
 *
 * usage: node deploy/patch-postgres.mjs [FOLDER_OF_THE_PACKAGE [--revert]]
 */
import { readFile, rename, writeFile } from 'node:fs/promises';
import { fileURLToPath } from 'node:url';

const VERSION = '3.4.9';
const BUILDS = ['src', 'cjs/src'];

const EDITS = [
  {
    file: 'connection.js',
    why: 'An immediate write finds no socket any more; outside every try/catch that is an uncaught exception.',
    before: `  function nextWrite(fn) {
    const x = socket.write(chunk, fn)
`,
    after: `  function nextWrite(fn) {
    if (!socket) {
      nextWriteTimer !== null && clearImmediate(nextWriteTimer)
      chunk = nextWriteTimer = null
      settleLost()
      return false
    }
    const x = socket.write(chunk, fn)
`,
  },
  {
    file: 'connection.js',
    why: 'What was written to a lost connection must get an answer, also when the loss came as an error (the error settles what ran then, but not what its handlers send before the close). The next use of the connection must not find rests of the old one: unsent bytes, a cleared timer that is never set again, an old error. And a server that takes connections only to close them is away: trying again at once, for ever, answers nobody.',
    before: `    clearImmediate(nextWriteTimer)
    socket.removeListener('data', data)
    socket.removeListener('connect', connected)
    idleTimer.cancel()
    lifeTimer.cancel()
    connectTimer.cancel()

    socket.removeAllListeners()
    socket = null

    if (initial)
      return reconnect()

    !hadError && (query || sent.length) && error(Errors.connection('CONNECTION_CLOSED', options, socket))
`,
    after: `    clearImmediate(nextWriteTimer)
    chunk = nextWriteTimer = null
    socket.removeListener('data', data)
    socket.removeListener('connect', connected)
    idleTimer.cancel()
    lifeTimer.cancel()
    connectTimer.cancel()

    socket.removeAllListeners()
    socket = null
    stream && (stream.destroy(Errors.connection('CONNECTION_CLOSED', options)), stream = null)
    settleLost()

    if (initial && options.host[1])
      return reconnect()
    initial && (queryError(initial, Errors.connection('CONNECTION_CLOSED', options)), initial = null)

`,
  },
  {
    file: 'connection.js',
    why: 'The settling itself. It leaves alone what waits for the connection to be made again.',
    before: `  /* Handlers */
  function handle(xs, x = xs[0]) {
`,
    after: `  function settleLost() {
    const lost = Errors.connection('CONNECTION_CLOSED', options)
    query && queryError(query, lost)
    while (sent.length)
      queryError(sent.shift(), lost)
    query = results = errorResponse = final = null
    result = new Result()
  }

  /* Handlers */
  function handle(xs, x = xs[0]) {
`,
  },
  {
    file: 'connection.js',
    why: 'A connection ended with bytes still unsent must not start its next life with them.',
    before: `    clearImmediate(nextWriteTimer)
    if (socket) {
`,
    after: `    clearImmediate(nextWriteTimer)
    chunk = nextWriteTimer = null
    if (socket) {
`,
  },
  {
    file: 'connection.js',
    why: 'A begin that fills the pipeline or meets a full socket must take its connection for itself all the same; otherwise the process dies and the transaction stays open under the queries of others.',
    before: `      return write(toBuffer(q))
        && !q.describeFirst
        && !q.cursorFn
        && sent.length < max_pipeline
        && (!q.options.onexecute || q.options.onexecute(connection))
`,
    after: `      const writable = write(toBuffer(q))
      const shared = !q.options.onexecute || q.options.onexecute(connection)
      return writable
        && !q.describeFirst
        && !q.cursorFn
        && sent.length < max_pipeline
        && shared
`,
  },
  {
    file: 'connection.js',
    why: 'The loss is told to the query that waits for the types; nothing handles this second rejection.',
    before: `        return fetchArrayTypes()
`,
    after: `        return fetchArrayTypes().catch(noop)
`,
  },
  {
    file: 'index.js',
    why: 'A transaction ends with its connection: what it still sends is refused, never run on the connection that takes the place of the lost one, where it would be part of the transaction of somebody else.',
    before: `        new Promise((_, reject) => connection.onclose = reject)
      ])
`,
    after: `        new Promise((_, reject) => connection.onclose = e => {
          lost = e
          while (queries.length)
            queries.shift().reject(e)
          reject(e)
        })
      ])
`,
  },
  {
    file: 'index.js',
    why: '(the same)',
    before: `    const queries = Queue()
    let savepoints = 0
      , connection
`,
    after: `    const queries = Queue()
    let savepoints = 0
      , lost = null
      , connection
`,
  },
  {
    file: 'index.js',
    why: '(the same)',
    before: `        q.catch(e => uncaughtError || (uncaughtError = e))
        c.queue === full
`,
    after: `        q.catch(e => uncaughtError || (uncaughtError = e))
        if (lost)
          return q.reject(lost)
        c.queue === full
`,
  },
];

/** Applies all edits or none; a package that has them already is left as it is. */
async function patch(folder, { revert }) {
  const { version } = JSON.parse(await readFile(`${folder}/package.json`, 'utf8'));
  if (version !== VERSION) {
    throw new Error(
      `postgres.js ${version} is installed, but deploy/patch-postgres.mjs repairs ${VERSION}: see which of its repairs the new version still needs.`,
    );
  }
  const changed = new Map();
  for (const build of BUILDS) {
    for (const { file, before, after } of EDITS) {
      const path = `${folder}/${build}/${file}`;
      const text = changed.get(path) ?? (await readFile(path, 'utf8'));
      const [from, to] = revert ? [after, before] : [before, after];
      if (occurrences(text, to) === 1 && occurrences(text, from) === occurrences(to, from)) continue;
      if (occurrences(text, from) !== 1) {
        throw new Error(`postgres.js ${VERSION} is not as deploy/patch-postgres.mjs expects it, in ${build}/${file}: install it anew.`);
      }
      // A function, because a string would be searched for $ patterns.
      changed.set(
        path,
        text.replace(from, () => to),
      );
    }
  }
  for (const [path, text] of changed) {
    // Renamed into place: another process may be loading the file.
    await writeFile(`${path}.unfinished`, text);
    await rename(`${path}.unfinished`, path);
  }
  return changed.size;
}

function occurrences(text, part) {
  return text.split(part).length - 1;
}

const [folder = fileURLToPath(new URL('../node_modules/postgres', import.meta.url)), option] = process.argv.slice(2);
try {
  const files = await patch(folder, { revert: option === '--revert' });
  if (files > 0) console.log(`postgres.js ${VERSION}: ${files} files repaired`);
} catch (error) {
  console.error(error.message);
  process.exitCode = 1;
}
