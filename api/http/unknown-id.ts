import { isSandbox } from '../../db/accounts/organizations.ts';
import type { Database } from '../../db/connection/client.ts';
import { isOnOtherSide } from '../../db/requests/batches.ts';
import { type ApiError, type ProblemCode, problem } from '../problems.ts';

const LIVE_HINT = 'Use a live key, which does not begin with npe_test_.';
const SANDBOX_HINT = 'It is in your sandbox. Use a key that begins with npe_test_.';

/**
 * Returns the 404 for an id that the organization of the key does not have. If the customer has the
 * id with keys of the other kind, live or test, the error says so. The ids of other customers get
 * the same error as unknown ids, after the same statements.
 * @param id the id of the request, or of the batch, even if the delivery is missing
 */
export async function unknownId(
  db: Database,
  code: Extract<ProblemCode, `${string}_not_found`>,
  organizationId: string,
  id: string,
): Promise<ApiError> {
  let hint = 'Check the id, or find it through /api/v1/batches.';
  if (await isOnOtherSide(db, organizationId, id)) {
    hint = isSandbox(organizationId) ? LIVE_HINT : SANDBOX_HINT;
  }
  return problem(code, { hint });
}
