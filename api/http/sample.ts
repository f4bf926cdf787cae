// Who has no valid key can cause as many log lines as requests.

const EVERY_MS = 10_000;

/**
 * Asked before a line of this status is written.
 * @returns how many have been left out since the one before; null where this one is to be left out as well
 */
export type Sample = (status: number) => number | null;

/** Lets one line of each status through in any 10 s. */
export function createSample(now: () => number = Date.now): Sample {
  const lines = new Map<number, { readonly at: number; suppressed: number }>();
  return (status) => {
    const line = lines.get(status);
    if (line && now() < line.at + EVERY_MS) {
      line.suppressed += 1;
      return null;
    }
    lines.set(status, { at: now(), suppressed: 0 });
    return line?.suppressed ?? 0;
  };
}
