import type { KeyRole } from '../db/words.ts';

/** One operation of the API. */
interface Route {
  /** The `operationId` in the OpenAPI document, which is also the name of the handler. */
  readonly id: string;
  readonly method: 'GET' | 'POST';
  readonly path: string;
  /**
   * The least role that an API key needs. A request with a key counts toward the key's rate limit.
   * Null if the operation needs no key. It then has no such limit.
   */
  readonly role: KeyRole | null;
}

/**
 * All routes, in the order in which api/docs/lifecycle.md lists them. The server responds 405 to
 * other methods at these paths, and 404 to unknown paths.
 */
export const ROUTES = [
  { id: 'submitSingle', method: 'POST', path: '/api/v1/email', role: 'member' },
  { id: 'submitBulk', method: 'POST', path: '/api/v1/email/bulk', role: 'member' },
  { id: 'checkNpis', method: 'POST', path: '/api/v1/check', role: 'read' },
  { id: 'getRequest', method: 'GET', path: '/api/v1/email/{request_id}', role: 'read' },
  { id: 'getBatch', method: 'GET', path: '/api/v1/batch/{batch_id}', role: 'read' },
  { id: 'getBatches', method: 'GET', path: '/api/v1/batches', role: 'read' },
  {
    id: 'getDeliveries',
    method: 'GET',
    path: '/api/v1/batch/{batch_id}/deliveries',
    role: 'read',
  },
  {
    id: 'getDelivery',
    method: 'GET',
    path: '/api/v1/batch/{batch_id}/deliveries/{delivery_id}',
    role: 'read',
  },
  {
    id: 'resendDelivery',
    method: 'POST',
    path: '/api/v1/batch/{batch_id}/deliveries/{delivery_id}/resend',
    role: 'member',
  },
  { id: 'getAllDeliveries', method: 'GET', path: '/api/v1/deliveries', role: 'read' },
  {
    id: 'resendFailedDeliveries',
    method: 'POST',
    path: '/api/v1/deliveries/resend',
    role: 'member',
  },
  { id: 'getCredits', method: 'GET', path: '/api/v1/credits', role: 'read' },
  { id: 'getLedger', method: 'GET', path: '/api/v1/credits/ledger', role: 'read' },
  { id: 'getUsage', method: 'GET', path: '/api/v1/usage', role: 'read' },
  { id: 'getHealth', method: 'GET', path: '/healthz', role: null },
  { id: 'getReadiness', method: 'GET', path: '/readyz', role: null },
  { id: 'getDescription', method: 'GET', path: '/openapi.json', role: null },
] as const satisfies readonly Route[];

export type OperationId = (typeof ROUTES)[number]['id'];
