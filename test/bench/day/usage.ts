import { readFileSync } from 'node:fs';
import { cpus } from 'node:os';

// Measures processes by the files of /proc, so it runs only on Linux.

/** Returns the process ids of the children of a process. */
export function childrenOf(pid: number): number[] {
  const list = contentOf(`/proc/${pid}/task/${pid}/children`).trim();
  return list === '' ? [] : list.split(' ').map(Number);
}

/** Keeps the most memory that each kind of process has used. */
export class PeakMemory {
  readonly #bytes = new Map<string, number>();

  /**
   * Measures now.
   * @param processes for each kind, a list of process ids for each program
   */
  sample(processes: Readonly<Record<string, readonly (readonly number[])[]>>): void {
    for (const [kind, programs] of Object.entries(processes)) {
      for (const pids of programs) {
        const bytes = pids.reduce((sum, pid) => sum + shareOf(pid), 0);
        this.#bytes.set(kind, Math.max(bytes, this.#bytes.get(kind) ?? 0));
      }
    }
  }

  /** Returns the peak of one program of each kind, in bytes. */
  peaks(): ReadonlyMap<string, number> {
    return this.#bytes;
  }
}

/** Returns the memory of a process. Memory that processes share is divided among them. */
function shareOf(pid: number): number {
  const [, kilobytes = 0] =
    /^Pss:\s+(\d+) kB/m.exec(contentOf(`/proc/${pid}/smaps_rollup`)) ?? [];
  return 1024 * Number(kilobytes);
}

/** Returns the time that all cores together were busy, and all their time, in milliseconds. */
export function cpuTimes(): { readonly busy: number; readonly all: number } {
  const times = cpus().map((cpu) => cpu.times);
  const all = times.flatMap((time) => Object.values(time)).reduce((a, b) => a + b, 0);
  const idle = times.reduce((sum, time) => sum + time.idle, 0);
  return { busy: all - idle, all };
}

/** Returns the content of a file of /proc, or empty text if its process has ended. */
function contentOf(file: string): string {
  try {
    return readFileSync(file, 'utf8');
  } catch {
    return '';
  }
}
