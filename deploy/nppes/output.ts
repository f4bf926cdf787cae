import { appendFile, rm, stat } from 'node:fs/promises';
import { orImportProblem } from './layout.ts';
import type { Reject } from './rows.ts';

/** Where an import shows how far it is: a line now and then. */
export interface ProgressOutput {
  readonly line: (text: string) => void;
}

export type Progress = ReturnType<typeof openProgress>;

const LINE_EVERY_MS = 10_000;

/**
 * Tells how far it is, with rate and time left.
 * @param totalBytes of all files, unpacked
 * @returns takes what was imported just now: bytes, unpacked, and rows
 */
export function openProgress({ line }: ProgressOutput, totalBytes: number) {
  const begun = performance.now();
  let bytes = 0;
  let rows = 0;
  let toldAt = begun;
  return (file: string, moreBytes: number, moreRows: number): void => {
    bytes += moreBytes;
    rows += moreRows;
    const now = performance.now();
    if (now - toldAt < LINE_EVERY_MS) return;
    toldAt = now;
    const seconds = (now - begun) / 1000;
    const left = bytes > 0 ? ((totalBytes - bytes) / bytes) * seconds : 0;
    const parts = [
      `${Math.floor((bytes / totalBytes) * 100)} %`,
      `${megabytes(bytes)} of ${megabytes(totalBytes)} MB`,
      `${rows.toLocaleString('en-US')} rows`,
      `${Math.round(rows / seconds).toLocaleString('en-US')} rows/s`,
      `${clockTime(left)} left`,
      file,
    ];
    line(`import: ${parts.join(', ')}\n`);
  };
}

function megabytes(bytes: number): string {
  return Math.round(bytes / 1_000_000).toLocaleString('en-US');
}

/** `01:02:03` or `02:03`. */
function clockTime(seconds: number): string {
  return new Date(Math.max(0, seconds) * 1000).toISOString().slice(11, 19).replace(/^00:/, '');
}

/** The file that lists what was not imported: `file,line,npi,reason`. It does not exist if there is nothing to list. */
export type RejectsFile = Awaited<ReturnType<typeof openRejects>>;

/** Begins the file again. @throws {ImportProblem} if it cannot be written */
export async function openRejects(path: string) {
  let text = 'file,line,npi,reason\n';
  const refused = (why: string) =>
    `cannot write the rejects file ${path} (${why}); name another place with --rejects`;
  // An hour's import must not end with its first rejected row.
  const begin = async () => {
    await appendFile(path, '');
    // `/dev/null` stays.
    if ((await stat(path)).isFile()) await rm(path);
  };
  await orImportProblem(begin(), refused);
  return {
    /** @throws {ImportProblem} if it cannot be written */
    async append(member: string, rejects: readonly Reject[]): Promise<void> {
      if (rejects.length === 0) return;
      for (const { line, npi, reason } of rejects) text += `${member},${line},${npi ?? ''},${reason}\n`;
      await orImportProblem(appendFile(path, text), refused);
      text = '';
    },
  };
}
