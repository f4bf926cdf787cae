import { spawn } from 'node:child_process';
import { mkdtemp, rm, stat } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { fileURLToPath } from 'node:url';
import postgres from 'postgres';
import { migrate } from '../../db/operations/migrate.ts';
import { connectForImport } from '../../db/providers/nppes/run.ts';
import { COPIED_PROVIDER_COLUMNS, copyTo } from '../../db/providers/nppes/staging.ts';
import { startPostgres } from '../../deploy/local/postgres.ts';
import { CHUNK_ROWS, readChunks, readHeader } from '../../deploy/nppes/chunks.ts';
import { openSource } from '../../deploy/nppes/source.ts';
import { memberName, writeLargeMain } from '../support/nppes.ts';

// `node test/bench/nppes.ts [ROWS]`: measures how many rows of the main file are imported per
// second, into an empty database and again without changes. Compares that to only reading the file
// and to a plain COPY, on the same PostgreSQL (a temporary one, without fsync). Ratios are
// comparable between machines, absolute numbers are not.

const ROWS = Number(process.argv[2] ?? 2_000_000);
/** Number of chunks that the plain COPY sends repeatedly. */
const COPIED_CHUNKS = 5;
const OPERATOR = fileURLToPath(new URL('../../deploy/operator.ts', import.meta.url));
/** The options of the operator's script in package.json. */
const NODE_OPTIONS = ['--max-semi-space-size=4'];
const TELLS_PEAK = `data:text/javascript,process.on('exit',()=>process.send({peak:process.resourceUsage().maxRSS}))`;

const folder = await mkdtemp(join(tmpdir(), 'npi-email-enrichment-'));
const server = await startPostgres({});
try {
  await migrate(server.url);
  const path = join(folder, memberName('npidata', '20260809'));
  await writeLargeMain(path, ROWS);
  const { size } = await stat(path);
  console.log(`${ROWS} rows of 330 columns, ${Math.round(size / 1e6)} MB`);

  const reading = tell('reading alone', await timeReading(path));
  const copying = tell('COPY alone', await timeCopy(path, server.url));
  const full = tell('import', await timeImport(path, server.url, []));
  tell('import again', await timeImport(path, server.url, ['--again']));
  console.log(
    `import to COPY alone ${(full / copying).toFixed(2)}, to reading alone ${(full / reading).toFixed(2)}`,
  );
  console.log(`providers of the database: ${await countProviders(server.url)}`);
} finally {
  await server.stop();
  await rm(folder, { recursive: true, force: true });
}

interface Timed {
  readonly ms: number;
  readonly rows: number;
  readonly peakMegabytes?: number;
}

/** Prints a measurement and returns rows per second. */
function tell(name: string, { ms, rows, peakMegabytes }: Timed): number {
  const rate = rows / (ms / 1000);
  const memory =
    peakMegabytes === undefined ? '' : `   ${peakMegabytes.toFixed(0)} MB at most`;
  console.log(`  ${name.padEnd(14)} ${rate.toFixed(0).padStart(7)} rows/s${memory}`);
  return rate;
}

async function timeReading(path: string): Promise<Timed> {
  const source = await openSource(path, 'nppes');
  const begun = performance.now();
  let rows = 0;
  for (const member of source.members) {
    for await (const chunk of readChunks(member, await readHeader(member)))
      rows += chunk.read;
  }
  return { ms: performance.now() - begun, rows };
}

async function timeCopy(path: string, url: string): Promise<Timed> {
  const source = await openSource(path, 'nppes');
  const chunks: Buffer[][] = [];
  for (const member of source.members) {
    for await (const chunk of readChunks(member, await readHeader(member))) {
      if (chunks.push([...chunk.copy]) === COPIED_CHUNKS) break;
    }
  }
  const connection = await connectForImport(url, 'bench');
  const begun = performance.now();
  const turns = Math.ceil(ROWS / CHUNK_ROWS);
  for (let turn = 0; turn < turns; turn += 1) {
    await connection.transaction(async (tx) => {
      await copyTo(
        tx,
        'staged_providers',
        COPIED_PROVIDER_COLUMNS,
        chunks[turn % chunks.length] ?? [],
      );
      await tx`select`;
    });
  }
  const ms = performance.now() - begun;
  await connection.close();
  return { ms, rows: turns * CHUNK_ROWS };
}

/** Runs the command as operators do, and measures it. */
async function timeImport(
  path: string,
  url: string,
  options: readonly string[],
): Promise<Timed> {
  const begun = performance.now();
  const peak = await new Promise<number>((resolve, reject) => {
    let told = 0;
    const child = spawn(
      process.execPath,
      [
        ...NODE_OPTIONS,
        '--import',
        TELLS_PEAK,
        OPERATOR,
        'import',
        'nppes',
        path,
        ...options,
      ],
      {
        cwd: folder,
        env: { PATH: process.env.PATH, DATABASE_URL: url },
        stdio: ['ignore', 'ignore', 'inherit', 'ipc'],
      },
    );
    child.on('message', (message: { peak: number }) => {
      told = message.peak;
    });
    child.once('error', reject);
    child.once('close', (code) =>
      code === 0 ? resolve(told) : reject(new Error(`the import ended with ${code}`)),
    );
  });
  return { ms: performance.now() - begun, rows: ROWS, peakMegabytes: peak / 1024 };
}

async function countProviders(url: string): Promise<number> {
  const sql = postgres(url, { max: 1, onnotice: () => {} });
  const [row] = await sql<
    { count: number }[]
  >`select count(*)::integer as count from providers`;
  await sql.end();
  return row?.count ?? 0;
}
