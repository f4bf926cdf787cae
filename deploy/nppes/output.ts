import { appendFile, rm } from 'node:fs/promises';
import { orImportProblem } from './layout.ts';
import type { Reject } from './rows.ts';

/** Where and how an import shows how far it is. */
export interface ProgressOutput {
  /** A terminal to keep one line on, if there is one. */
  readonly terminal: Pick<NodeJS.WriteStream, 'write' | 'columns'> | null;
  /** Takes a line now and then otherwise. */
  readonly line: (text: string) => void;
}

export type Progress = ReturnType<typeof openProgress>;

const LINE_EVERY_MS = 10_000;
const REDRAW_EVERY_MS = 100;
const CLEAR_LINE = '\r\u001b[K';

/**
 * How far it is, with rate and time left: one line that changes on a terminal, lines now and then elsewhere.
 * @param totalBytes of all files, unpacked
 */
export function openProgress({ terminal, line }: ProgressOutput, totalBytes: number) {
  const begun = performance.now();
  let bytes = 0;
  let rows = 0;
  let lastLine = terminal ? Number.NEGATIVE_INFINITY : begun;
  return {
    /** Adds what was imported just now: bytes, unpacked, and rows. */
    show(file: string, moreBytes: number, moreRows: number): void {
      bytes += moreBytes;
      rows += moreRows;
      const now = performance.now();
      if (now - lastLine < (terminal ? REDRAW_EVERY_MS : LINE_EVERY_MS)) return;
      lastLine = now;
      const seconds = (now - begun) / 1000;
      const left = bytes > 0 ? ((totalBytes - bytes) / bytes) * seconds : 0;
      const text = [
        `import: ${Math.floor((bytes / totalBytes) * 100)} %`,
        `${megabytes(bytes)} of ${megabytes(totalBytes)} MB`,
        `${rows.toLocaleString('en-US')} rows`,
        `${Math.round(rows / seconds).toLocaleString('en-US')} rows/s`,
        `${clockTime(left)} left`,
        file,
      ].join(', ');
      if (terminal) terminal.write(`${CLEAR_LINE}${text.slice(0, terminal.columns - 1)}`);
      else line(`${text}\n`);
    },
    stop: () => terminal?.write(CLEAR_LINE),
  };
}

function megabytes(bytes: number): string {
  return Math.round(bytes / 1_000_000).toLocaleString('en-US');
}

/** `1:02:03` or `02:03`. */
function clockTime(seconds: number): string {
  const parts = [Math.floor(seconds / 3600), Math.floor(seconds / 60) % 60, Math.floor(seconds) % 60];
  return parts
    .slice(parts[0] === 0 ? 1 : 0)
    .map((part) => String(part).padStart(2, '0'))
    .join(':');
}

/** The file that lists what was not imported: `file,line,npi,reason`. It does not exist if there is nothing to list. */
export type RejectsFile = Awaited<ReturnType<typeof openRejects>>;

const HEADING = 'file,line,npi,reason\n';

/** Begins the file again. @throws {ImportProblem} if it cannot be written */
export async function openRejects(path: string) {
  let text = HEADING;
  const refused = (why: string) =>
    `cannot write the rejects file ${path} (${why}); name another place with --rejects`;
  await orImportProblem(rm(path, { force: true }), refused);
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
