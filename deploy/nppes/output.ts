import { appendFile, rm } from 'node:fs/promises';
import { Presets, SingleBar } from 'cli-progress';
import { ImportProblem } from './layout.ts';
import type { Reject } from './rows.ts';

/** Where and how an import shows how far it is. */
export interface ProgressOutput {
  /** A terminal to draw a bar on, if there is one. */
  readonly terminal: NodeJS.WritableStream | null;
  /** Takes a line now and then otherwise. */
  readonly line: (text: string) => void;
}

export interface Progress {
  /** Adds what was imported just now: bytes, unpacked, and rows. */
  show(file: string, bytes: number, rows: number): void;
  stop(): void;
}

const LINE_EVERY_MS = 10_000;

/**
 * A bar with rate and time left on a terminal, plain lines elsewhere.
 * @param totalBytes of all files, unpacked
 */
export function openProgress(output: ProgressOutput, totalBytes: number): Progress {
  const begun = performance.now();
  let bytes = 0;
  let rows = 0;
  let lastLine = begun;
  const bar =
    output.terminal &&
    new SingleBar(
      {
        stream: output.terminal,
        format: '{bar} {percentage}% | {text}',
        hideCursor: false,
        linewrap: false,
        clearOnComplete: true,
        // A process that waits for nothing else must end.
        gracefulExit: false,
      },
      Presets.shades_classic,
    );
  bar?.start(totalBytes, 0, { text: '' });
  return {
    show(file, moreBytes, moreRows) {
      bytes += moreBytes;
      rows += moreRows;
      const seconds = (performance.now() - begun) / 1000;
      const left = bytes > 0 ? ((totalBytes - bytes) / bytes) * seconds : 0;
      const text = [
        `${megabytes(bytes)} of ${megabytes(totalBytes)} MB`,
        `${rows.toLocaleString('en-US')} rows`,
        `${Math.round(rows / seconds).toLocaleString('en-US')} rows/s`,
        `${clockTime(left)} left`,
        file,
      ].join(', ');
      if (bar) return bar.update(bytes, { text });
      if (performance.now() - lastLine < LINE_EVERY_MS) return;
      lastLine = performance.now();
      output.line(`import: ${Math.floor((bytes / totalBytes) * 100)} %, ${text}\n`);
    },
    stop: () => bar?.stop(),
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
export interface RejectsFile {
  /** @throws {ImportProblem} if it cannot be written */
  append(member: string, rejects: readonly Reject[]): Promise<void>;
}

const HEADING = 'file,line,npi,reason\n';

/** Begins the file again. @throws {ImportProblem} if it cannot be written */
export async function openRejects(path: string): Promise<RejectsFile> {
  let text = HEADING;
  await orProblem(path, rm(path, { force: true }));
  return {
    async append(member, rejects) {
      if (rejects.length === 0) return;
      for (const { line, npi, reason } of rejects) text += `${member},${line},${npi ?? ''},${reason}\n`;
      await orProblem(path, appendFile(path, text));
      text = '';
    },
  };
}

async function orProblem(path: string, work: Promise<void>): Promise<void> {
  try {
    await work;
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? String(error.code) : 'unknown';
    throw new ImportProblem(
      `cannot write the rejects file ${path} (${code}); name another place with --rejects`,
    );
  }
}
