import { Presets, SingleBar } from 'cli-progress';

/** Where and how an import shows how far it is. */
export interface ProgressOutput {
  /** A terminal, where there is one to draw a bar on. */
  readonly terminal: NodeJS.WritableStream | null;
  /** Takes a line now and then otherwise. */
  readonly line: (text: string) => void;
}

export interface Progress {
  /** @param bytes of the whole set that are done  @param rows read by this process */
  show(file: string, bytes: number, rows: number): void;
  stop(): void;
}

const LINE_EVERY_MS = 10_000;

/**
 * A bar with rate and time left on a terminal, plain lines elsewhere.
 * @param totalBytes of all files, unpacked
 * @param doneBytes what an earlier run had done of them
 */
export function openProgress(output: ProgressOutput, totalBytes: number, doneBytes: number): Progress {
  const begun = performance.now();
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
  bar?.start(totalBytes, doneBytes, { text: '' });
  return {
    show(file, bytes, rows) {
      const seconds = (performance.now() - begun) / 1000;
      const bytesPerSecond = (bytes - doneBytes) / seconds;
      const left = bytesPerSecond > 0 ? (totalBytes - bytes) / bytesPerSecond : 0;
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
