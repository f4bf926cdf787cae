/** The body of `GET /api/v1/usage` by day. */
export interface UsageReport {
  readonly since: string;
  readonly until: string;
  readonly usage: readonly {
    readonly day: string;
    readonly found: number;
    readonly replayed: number;
    readonly not_found: number;
    readonly failed: number;
    readonly credits_charged: number;
  }[];
}

const DAY_MS = 86_400_000;
/** The size of the chart in its own units. A day is 10 wide, and its bar 8. */
const HEIGHT = 100;
const DAY_WIDTH = 10;
const BAR_WIDTH = 8;

/**
 * Returns the rows of the table of usage, newest first, and the bars of its chart: the emails found
 * on each day of the period.
 */
export function usageView({ since, until, usage }: UsageReport) {
  const start = Date.parse(since);
  const days = (Date.parse(until) - start) / DAY_MS;
  const most = Math.max(1, ...usage.map(({ found }) => found));
  const bars = usage.map(({ day, found }) => {
    const height = (HEIGHT * found) / most;
    return {
      x: ((Date.parse(day) - start) / DAY_MS) * DAY_WIDTH,
      y: HEIGHT - height,
      width: BAR_WIDTH,
      height,
      title: `${day}: ${found} found`,
    };
  });
  return { rows: usage.toReversed(), bars, width: days * DAY_WIDTH };
}
