import type { Lifecycle } from '@hapi/hapi';
import { listLedger } from '../../db/accounts/credits.ts';
import type { Database } from '../../db/client.ts';
import { listBatches } from '../../db/requests/batches.ts';
import { batchObject } from '../../db/requests/envelope.ts';
import { readInTurn } from '../http/overload.ts';
import { BATCHES_QUERY, LEDGER_QUERY, listedBy } from '../http/parameters.ts';

/** What an organization has submitted and what became of its credits, the newest first. */
export function historyHandlers(db: Database) {
  return {
    getBatches: async (request) => {
      const { organizationId } = request.auth.credentials;
      const { limit, cursor, ...filter } = listedBy(request, BATCHES_QUERY);
      const page = { limit, after: cursor && `bat_${cursor}` };
      const list = () => listBatches(db, organizationId, filter, page);
      const { batches, next } = await readInTurn(request, list);
      return { batches: batches.map(batchObject), next_cursor: next?.slice('bat_'.length) ?? null };
    },
    getLedger: async (request) => {
      const { organizationId } = request.auth.credentials;
      const { limit, cursor } = listedBy(request, LEDGER_QUERY);
      const [id = 0, available = 0] = cursor?.split('-').map(Number) ?? [];
      const page = { limit, after: cursor === null ? null : { id, available } };
      const { entries, next } = await readInTurn(request, () => listLedger(db, organizationId, page));
      return {
        entries: entries.map(({ createdAt, kind, amount, requestId, availableAfter }) => ({
          created_at: createdAt,
          reason: kind,
          amount,
          request_id: requestId,
          balance_after: availableAfter,
        })),
        next_cursor: next && `${next.id}-${next.available}`,
      };
    },
  } satisfies Record<string, Lifecycle.Method>;
}
