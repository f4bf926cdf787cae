import { open, rm, stat } from 'node:fs/promises';
import { ImportProblem } from './problem.ts';
import type { Reject } from './rows.ts';

/** The file that lists what was not imported: `file,line,npi,reason`. It does not exist where there is nothing to list. */
export interface RejectsFile {
  /** Where it ends, to go on from there after an interruption. */
  readonly size: () => number;
  /** @throws {ImportProblem} where it cannot be written */
  append(member: string, rejects: readonly Reject[]): Promise<void>;
}

const HEADING = 'file,line,npi,reason\n';

/**
 * Begins the file again, or goes on where a run was interrupted.
 * @param size of what that run had written up to its checkpoint; 0 to begin
 * @throws {ImportProblem} where it cannot be written
 */
export async function openRejects(path: string, size: number): Promise<RejectsFile> {
  const found = await stat(path).catch(() => null);
  let written = found !== null && found.size >= size ? size : 0;
  await orProblem(path, async () => {
    if (written === 0) await rm(path, { force: true });
  });
  return {
    size: () => written,
    async append(member, rejects) {
      if (rejects.length === 0) return;
      const lines = rejects
        .map(({ line, npi, reason }) => `${member},${line},${npi ?? ''},${reason}\n`)
        .join('');
      const text = Buffer.from(written === 0 ? HEADING + lines : lines);
      await orProblem(path, async () => {
        const file = await open(path, written === 0 ? 'w' : 'r+');
        try {
          await file.truncate(written);
          await file.write(text, 0, text.length, written);
        } finally {
          await file.close();
        }
      });
      written += text.length;
    },
  };
}

async function orProblem(path: string, work: () => Promise<void>): Promise<void> {
  try {
    await work();
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? String(error.code) : 'unknown';
    throw new ImportProblem(
      `cannot write the rejects file ${path} (${code}); name another place with --rejects`,
    );
  }
}
