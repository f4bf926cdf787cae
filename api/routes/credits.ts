import type { Lifecycle, Request, ResponseObject, ResponseToolkit } from '@hapi/hapi';
import { balanceOf } from '../../db/accounts/credits.ts';
import { listDailyUsage } from '../../db/accounts/daily-usage.ts';
import { listLedger, readLedger } from '../../db/accounts/ledger.ts';
import type { Database, Period } from '../../db/connection/client.ts';
import { csvFile, sendCsv } from '../http/csv.ts';
import { readInTurn } from '../http/turn-queue.ts';
import {
  LEDGER_QUERY,
  ledgerCursor,
  ledgerPlace,
  listedBy,
  problemAt,
  USAGE_QUERY,
} from '../http/validation.ts';
import { invalid } from '../problems.ts';

/** Returns the handlers for an organization's credits: the balance, the ledger, and the usage. */
export function creditsHandlers(db: Database) {
  return {
    // balance = total − used − held (api/docs/lifecycle.md, Credits).
    getCredits: async (request, h) => {
      const { available, total, used } = await readInTurn(request, (owner) =>
        balanceOf(db, owner),
      );
      const response = h.response({ balance: available, total, used });
      const { keyExpiresAt } = request.auth.credentials;
      if (!keyExpiresAt) return response;
      return response.header('x-api-key-expires', keyExpiresAt.toISOString());
    },
    getLedger: async (request, h) => {
      const { limit, cursor, format, ...period } = listedBy(request, LEDGER_QUERY);
      if (format === 'csv') {
        const tooLong = () => periodTooLong('ledger file');
        return await ledgerFile(
          db,
          { ...period, name: 'ledger.csv', tooLong },
          request,
          h,
        );
      }
      const after = cursor === null ? null : ledgerPlace(cursor);
      const { entries, next } = await readInTurn(request, (organizationId) =>
        listLedger(db, organizationId, { ...period, after, limit }),
      );
      return {
        entries: entries.map(entryObject),
        next_cursor: next && ledgerCursor(next),
      };
    },
    getUsage: async (request, h) => {
      const { by, format, since, until } = listedBy(request, USAGE_QUERY);
      const period = wholeDays(since, until);
      const rows = await readInTurn(request, (organizationId) =>
        listDailyUsage(db, organizationId, period),
      );
      const usage = usageBy(by, rows);
      if (format === 'csv') return usageFile(h, 'usage.csv', by, usage);
      return { ...period, by, usage, total: sumsOf(rows) };
    },
  } satisfies Record<string, Lifecycle.Method>;
}

/** The maximum number of entries in a file, which then has about 12 MB. */
const MAX_FILE_ENTRIES = 100_000;

const LEDGER_COLUMNS = [
  'created_at',
  'reason',
  'amount',
  'balance_after',
  'request_id',
  'batch_id',
  'npi',
  'requested_type',
] as const;

interface LedgerFile extends Period {
  readonly name: string;
  /** Returns the error for too many entries. */
  readonly tooLong: () => Error;
}

/**
 * Returns all ledger entries of a period as one file, because a bookkeeper wants no pages.
 * @throws the error of `tooLong`
 */
export async function ledgerFile(
  db: Database,
  { name, tooLong, ...period }: LedgerFile,
  request: Request,
  h: ResponseToolkit,
): Promise<ResponseObject> {
  const { organizationId } = request.auth.credentials;
  const wanted = { ...period, most: MAX_FILE_ENTRIES };
  return await sendCsv({ request, h }, name, LEDGER_COLUMNS, async (use) => {
    const isSent = await readLedger(db, organizationId, wanted, (entries) =>
      use(entries.map(entryObject)),
    );
    if (!isSent) throw tooLong();
  });
}

type LedgerEntry = Awaited<ReturnType<typeof listLedger>>['entries'][number];

function entryObject(entry: LedgerEntry) {
  return {
    created_at: entry.createdAt,
    reason: entry.kind,
    amount: entry.amount,
    balance_after: entry.availableAfter,
    request_id: entry.requestId,
    batch_id: entry.batchId,
    npi: entry.npi,
    requested_type: entry.requestedType,
  };
}

const DAY_MS = 86_400_000;
const MAX_DAYS = 366;

/**
 * Rounds a period to whole UTC days, so that it includes the days of both ends. Without `until`, it
 * ends with today, or is empty if it would begin later. Without `since`, it begins with the month of
 * its last day.
 * @throws {ApiError} 422 for too many days
 */
function wholeDays(since: Date | null, until: Date | null) {
  const last = until?.getTime() ?? Math.max(Date.now(), since?.getTime() ?? 0);
  const end = DAY_MS * Math.ceil(last / DAY_MS);
  const monthOfEnd = new Date(end - DAY_MS).setUTCDate(1);
  const begin = DAY_MS * Math.floor((since?.getTime() ?? monthOfEnd) / DAY_MS);
  if (end - begin > MAX_DAYS * DAY_MS) {
    throw periodTooLong('usage period');
  }
  return { since: new Date(begin), until: new Date(end) };
}

function periodTooLong(fault: 'ledger file' | 'usage period') {
  return invalid([problemAt(['query', 'since'], fault)]);
}

const SUMS = ['found', 'replayed', 'not_found', 'failed', 'credits_charged'] as const;

type DailyUsage = Omit<
  Awaited<ReturnType<typeof listDailyUsage>>[number],
  'organizationId'
>;
type UsageKey = 'day' | 'type';

/** Returns the usage of `usageBy` as a file. */
export function usageFile(
  h: ResponseToolkit,
  name: string,
  by: UsageKey,
  usage: ReturnType<typeof usageBy>,
): ResponseObject {
  const key = by === 'day' ? 'day' : 'requested_type';
  return csvFile(h, name, [key, ...SUMS], usage);
}

/** Sums the usage by day or by requested type, in this order. */
export function usageBy(by: UsageKey, rows: readonly DailyUsage[]) {
  const groups = Map.groupBy(rows, (row) => (by === 'day' ? row.day : row.requestedType));
  const sorted = [...groups].toSorted(([a], [b]) => (a < b ? -1 : 1));
  return sorted.map(([key, group]) => ({
    day: by === 'day' ? key : null,
    requested_type: by === 'day' ? null : key,
    ...sumsOf(group),
  }));
}

/** Sums the usage of several days and types. */
export function sumsOf(rows: readonly DailyUsage[]) {
  const sums = { found: 0, replayed: 0, not_found: 0, failed: 0, credits_charged: 0 };
  for (const row of rows) {
    sums.found += row.found;
    sums.replayed += row.replayed;
    sums.not_found += row.notFound;
    sums.failed += row.failed;
    sums.credits_charged += row.creditsCharged;
  }
  return sums;
}
