/** One operation of the API. */
interface Route {
  /** The `operationId` in the OpenAPI document, which is also the name of the handler. */
  readonly id: string;
  readonly method: 'GET' | 'POST';
  readonly path: string;
  /**
   * `keyed` needs an API key and counts toward its rate limit. `open` needs no key and has no such
   * limit.
   */
  readonly scope: 'keyed' | 'open';
}

/**
 * All routes, in the order in which api/docs/lifecycle.md lists them. The server responds 405 to
 * other methods at these paths, and 404 to unknown paths.
 */
export const ROUTES = [
  { id: 'submitSingle', method: 'POST', path: '/api/v1/email', scope: 'keyed' },
  { id: 'submitBulk', method: 'POST', path: '/api/v1/email/bulk', scope: 'keyed' },
  { id: 'checkNpis', method: 'POST', path: '/api/v1/check', scope: 'keyed' },
  { id: 'getRequest', method: 'GET', path: '/api/v1/email/{request_id}', scope: 'keyed' },
  { id: 'getBatch', method: 'GET', path: '/api/v1/batch/{batch_id}', scope: 'keyed' },
  { id: 'getBatches', method: 'GET', path: '/api/v1/batches', scope: 'keyed' },
  {
    id: 'getDeliveries',
    method: 'GET',
    path: '/api/v1/batch/{batch_id}/deliveries',
    scope: 'keyed',
  },
  {
    id: 'getDelivery',
    method: 'GET',
    path: '/api/v1/batch/{batch_id}/deliveries/{delivery_id}',
    scope: 'keyed',
  },
  {
    id: 'resendDelivery',
    method: 'POST',
    path: '/api/v1/batch/{batch_id}/deliveries/{delivery_id}/resend',
    scope: 'keyed',
  },
  { id: 'getAllDeliveries', method: 'GET', path: '/api/v1/deliveries', scope: 'keyed' },
  {
    id: 'resendFailedDeliveries',
    method: 'POST',
    path: '/api/v1/deliveries/resend',
    scope: 'keyed',
  },
  { id: 'getCredits', method: 'GET', path: '/api/v1/credits', scope: 'keyed' },
  { id: 'getLedger', method: 'GET', path: '/api/v1/credits/ledger', scope: 'keyed' },
  { id: 'getUsage', method: 'GET', path: '/api/v1/usage', scope: 'keyed' },
  { id: 'getHealth', method: 'GET', path: '/healthz', scope: 'open' },
  { id: 'getReadiness', method: 'GET', path: '/readyz', scope: 'open' },
  { id: 'getDescription', method: 'GET', path: '/openapi.json', scope: 'open' },
] as const satisfies readonly Route[];

export type OperationId = (typeof ROUTES)[number]['id'];
