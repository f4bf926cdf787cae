import { cpuTimes } from './usage.ts';

/** The time before the first event and between two events, to which all others are compared. */
export const NORMAL = 'normal';
/** The first minutes, in which connections open and code is compiled. They count for nothing. */
export const START = 'start';
/** The time after the last submit, in which customers wait for their results. */
export const END = 'end';

/** Notes which part of the day is when, and how busy the machine was in each. */
export class Phases {
  readonly #begun: { name: string; at: number; busy: number; all: number }[] = [];

  begin(name: string): void {
    this.#begun.push({ name, at: Date.now(), ...cpuTimes() });
  }

  /** Returns the phase at a time in milliseconds. */
  at(ms: number): string {
    return this.#begun.findLast(({ at }) => at <= ms)?.name ?? START;
  }

  /** Returns the phases that are measured, in the order of their first time. */
  measured(): string[] {
    const names = new Set(this.#begun.map(({ name }) => name));
    return [...names].filter((name) => name !== START && name !== END);
  }

  /** Returns the seconds of each phase, and the share of the cores' time that was used. */
  totals(): Map<string, { seconds: number; busy: number }> {
    const sums = new Map<string, { seconds: number; busy: number; all: number }>();
    for (const [n, { name, at, busy, all }] of this.#begun.entries()) {
      const next = this.#begun[n + 1];
      if (!next) continue;
      const sum = sums.get(name) ?? { seconds: 0, busy: 0, all: 0 };
      sum.seconds += (next.at - at) / 1000;
      sum.busy += next.busy - busy;
      sum.all += next.all - all;
      sums.set(name, sum);
    }
    return new Map(
      [...sums].map(([name, { seconds, busy, all }]) => [
        name,
        { seconds, busy: busy / all },
      ]),
    );
  }
}
