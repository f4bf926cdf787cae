import type { Lifecycle, Request, ResponseObject, ResponseToolkit } from '@hapi/hapi';
import { type Bill, readBill } from '../../db/accounts/bill.ts';
import { isSandbox } from '../../db/accounts/organizations.ts';
import type { Database } from '../../db/connection/client.ts';
import { CallFailed } from '../http/call-api.ts';
import { readInTurn } from '../http/turn-queue.ts';
import { ledgerFile, sumsOf, usageBy, usageFile } from '../routes/credits.ts';
import { page } from './page.ts';

// The page of usage (a month by day and type, with its bill), and the chart of the overview.

/** The body of `GET /api/v1/usage` by day. */
export interface UsageReport {
  readonly since: string;
  readonly usage: readonly { readonly day: string; readonly found: number }[];
  readonly total: { readonly found: number; readonly credits_charged: number };
}

const DAY_MS = 86_400_000;
/** The size of the chart in its own units. A day is 10 wide, and its bar 8. */
const HEIGHT = 100;
const DAY_WIDTH = 10;
const BAR_WIDTH = 8;

/**
 * Returns the chart of a month: a bar for the emails found on each day, and the numbers of its axes.
 * `found` and `credits` are of the whole month.
 */
export function usageChart({ since, usage, total }: UsageReport) {
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
    found: total.found,
    credits: total.credits_charged,
    bars,
    width: last.getUTCDate() * DAY_WIDTH,
    top,
    half,
    first: since.slice(0, 10),
    last: last.toISOString().slice(0, 10),
  };
}

/**
 * Returns the month with an id such as `2026-11`, or the current month for any other text. The month
 * ends before `until`. `later` is null for the current month.
 */
export function monthOf(given: unknown) {
  const now = new Date().toISOString().slice(0, 7);
  const isMonth = /^20\d\d-(?:0[1-9]|1[0-2])$/.test(String(given));
  const id = isMonth ? String(given) : now;
  const since = new Date(`${id}-01T00:00:00Z`);
  const until = new Date(Date.UTC(since.getUTCFullYear(), since.getUTCMonth() + 1));
  const name = since.toLocaleString('en-US', {
    month: 'long',
    year: 'numeric',
    timeZone: 'UTC',
  });
  return {
    id,
    name,
    since,
    until,
    isCurrent: id === now,
    earlier: new Date(since.getTime() - DAY_MS).toISOString().slice(0, 7),
    later: id < now ? until.toISOString().slice(0, 7) : null,
  };
}

/** Returns the handlers of the page of usage and its files. */
export function usageHandlers(db: Database) {
  return {
    show: (request, h) => show(db, request, h),
    days: (request, h) => sendUsage(db, 'day', request, h),
    types: (request, h) => sendUsage(db, 'type', request, h),
    ledger: (request, h) => {
      const { id, since, until } = monthOf(request.query.month);
      const tooLong = () => {
        const detail =
          'This month has too many ledger entries for one file. Read them in parts from the API.';
        return new CallFailed(422, { detail });
      };
      const file = { since, until, name: `ledger-${id}.csv`, tooLong };
      return ledgerFile(db, file, request, h);
    },
  } satisfies Record<string, Lifecycle.Method>;
}

async function show(
  db: Database,
  request: Request,
  h: ResponseToolkit,
): Promise<ResponseObject> {
  const month = monthOf(request.query.month);
  const bill = await readInTurn(request, (owner) => readBill(db, owner, month));
  return page(request, h, 'usage', {
    title: `Usage in ${month.name}`,
    month,
    days: usageBy('day', bill.usage),
    types: usageBy('type', bill.usage),
    total: sumsOf(bill.usage),
    // A sandbox pays nothing, so it has no bill.
    bill: isSandbox(request.auth.credentials.organizationId) ? null : linesOf(bill),
    held: month.isCurrent ? bill.held : 0,
  });
}

async function sendUsage(
  db: Database,
  by: 'day' | 'type',
  request: Request,
  h: ResponseToolkit,
): Promise<ResponseObject> {
  const month = monthOf(request.query.month);
  const { usage } = await readInTurn(request, (owner) => readBill(db, owner, month));
  return usageFile(h, `usage-${month.id}-by-${by}.csv`, by, usageBy(by, usage));
}

/**
 * Returns the lines of a bill with the balance after each, and its sums. The charges of a day are one
 * line, after the grants and adjustments of the day.
 */
function linesOf({ opening, funding, usage }: Bill) {
  const charges = usageBy('day', usage).map(({ day, found, credits_charged }) => ({
    day: String(day),
    kind: 'charge',
    amount: -credits_charged,
    reference: null,
    found,
  }));
  const changes = [...funding, ...charges].filter(({ amount }) => amount !== 0);
  const sorted = changes.toSorted((a, b) => a.day.localeCompare(b.day));
  let balance = opening;
  const lines = sorted.map((change) => {
    balance += change.amount;
    return { ...change, is: { [change.kind]: true }, balance };
  });
  const sumOf = (kind: string) =>
    changes
      .filter((change) => change.kind === kind)
      .reduce((sum, { amount }) => sum + amount, 0);
  return {
    opening,
    lines,
    granted: sumOf('grant'),
    adjusted: sumOf('adjustment'),
    charged: Math.abs(sumOf('charge')),
    closing: balance,
  };
}
