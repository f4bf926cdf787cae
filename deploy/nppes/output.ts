import { appendFile, rm, stat } from 'node:fs/promises';
import { orImportProblem } from './layout.ts';
import type { Reject } from './rows.ts';

/** Where an import prints its progress, one line at a time. */
export interface ProgressOutput {
  readonly line: (text: string) => void;
}

export type Progress = ReturnType<typeof openProgress>;

const LINE_EVERY_MS = 10_000;

/**
 * Starts to report the progress of an import, with the rate and the remaining time.
 * @param totalBytes unpacked size of all files
 * @returns a function to call after each chunk, with the bytes and rows of the chunk. It prints a
 * line every 10 seconds
 */
export function openProgress({ line }: ProgressOutput, totalBytes: number) {
  const begun = performance.now();
  let bytes = 0;
  let rows = 0;
  let printedAt = begun;
  return (file: string, moreBytes: number, moreRows: number): void => {
    bytes += moreBytes;
    rows += moreRows;
    const now = performance.now();
    if (now - printedAt < LINE_EVERY_MS) return;
    printedAt = now;
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

/** Formats a duration, such as `02:03`, or `01:02:03` if it is an hour or longer. */
function clockTime(seconds: number): string {
  return new Date(Math.max(0, seconds) * 1000)
    .toISOString()
    .slice(11, 19)
    .replace(/^00:/, '');
}

/**
 * The file that lists rejected rows, with the columns `file,line,npi,reason`. It is created when
 * the first row is rejected.
 */
export type RejectsFile = Awaited<ReturnType<typeof openRejects>>;

/**
 * Deletes the rejects file of an earlier import, and returns a writer for the new one.
 * @throws {ImportProblem} if the file cannot be written
 */
export async function openRejects(path: string) {
  let text = 'file,line,npi,reason\n';
  const refused = (why: string) =>
    `cannot write the rejects file ${path} (${why}); choose another one with --rejects`;
  await orImportProblem(removeWritable(path), refused);
  return {
    /** Appends rows. @throws {ImportProblem} if the file cannot be written */
    async append(member: string, rejects: readonly Reject[]): Promise<void> {
      if (rejects.length === 0) return;
      for (const { line, npi, reason } of rejects) {
        text += `${member},${line},${npi ?? ''},${reason}\n`;
      }
      await orImportProblem(appendFile(path, text), refused);
      text = '';
    },
  };
}

/**
 * Checks that a file can be written, and removes it. Without this check, an import could fail after
 * an hour, when its first row is rejected.
 */
async function removeWritable(path: string): Promise<void> {
  await appendFile(path, '');
  const status = await stat(path);
  // A device such as `/dev/null` must not be removed.
  if (status.isFile()) await rm(path);
}
