import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { importNppes } from '../nppes/importer.ts';
import { writeSample } from './sample.ts';

/** A few thousand rows: one transaction. */
const CHUNK_ROWS = 100_000;

/**
 * Writes the sample of NPPES and brings it in through the real importer, the monthly file and then the weekly one.
 * Files that were imported before change nothing.
 * @returns the rows read, for people
 * @throws {ImportProblem}
 */
export async function importSample(databaseUrl: string, dir: string): Promise<number> {
  const folder = join(dir, 'nppes');
  await mkdir(folder, { recursive: true });
  const { zip, weekly } = await writeSample(folder);
  let rows = 0;
  for (const path of [zip, weekly]) {
    const { counts } = await importNppes({
      ...{ databaseUrl, path, rejectsPath: `${path}.rejects.csv`, chunkRows: CHUNK_ROWS },
      ...{ dryRun: false, again: false, acceptsDrift: false },
      by: { actor: 'npm start', reason: 'local stack' },
      output: { terminal: null, line: () => {} },
    });
    rows += counts['npidata.read'] ?? 0;
  }
  return rows;
}
