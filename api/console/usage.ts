import type { Request } from '@hapi/hapi';

/** The body of `GET /api/v1/usage` by day. */
export interface UsageReport {
  readonly since: string;
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

function sum(numbers: readonly number[]): number {
  return numbers.reduce((total, number) => total + number, 0);
}

/**
 * Returns the rows of the table of usage, newest first, and its chart: a bar for the emails found on
 * each day of the month, and the numbers of its axes. `found` and `credits` are of the whole month.
 */
export function usageView({ since, usage }: UsageReport) {
  const month = new Date(since);
  const last = new Date(Date.UTC(month.getUTCFullYear(), month.getUTCMonth() + 1, 0));
  const half = Math.ceil(Math.max(1, ...usage.map(({ found }) => found)) / 2);
  const top = 2 * half;
  const bars = usage.map(({ day, found }) => {
    const height = (HEIGHT * found) / top;
    return {
      x: (new Date(day).getUTCDate() - 1) * DAY_WIDTH,
      y: HEIGHT - height,
      width: BAR_WIDTH,
      height,
      title: `${day}: ${found} found`,
    };
  });
  return {
    found: sum(usage.map((day) => day.found)),
    credits: sum(usage.map((day) => day.credits_charged)),
    rows: usage.toReversed(),
    bars,
    width: last.getUTCDate() * DAY_WIDTH,
    top,
    half,
    first: since.slice(0, 10),
    last: last.toISOString().slice(0, 10),
  };
}

/**
 * Returns the month that the query of a page names, such as `2026-11`, or the current one. `period`
 * is the query of the API for it. `later` is null for the current month.
 */
export function monthOf(request: Request) {
  const now = new Date().toISOString().slice(0, 7);
  const { month: given } = request.query as { readonly month?: string };
  const month = /^\d{4}-(?:0[1-9]|1[0-2])$/.test(given ?? '') ? String(given) : now;
  const start = Date.parse(`${month}-01T00:00:00Z`);
  const later = new Date(start + 32 * DAY_MS).toISOString().slice(0, 7);
  const earlier = new Date(start - DAY_MS).toISOString().slice(0, 7);
  const period = new URLSearchParams({ since: `${month}-01T00:00:00Z` });
  if (month < now) period.set('until', `${later}-01T00:00:00Z`);
  const name = new Date(start).toLocaleString('en-US', {
    month: 'long',
    year: 'numeric',
    timeZone: 'UTC',
  });
  return { name, earlier, later: month < now ? later : null, period: String(period) };
}
