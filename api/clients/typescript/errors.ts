import type { AnyProblem, FaultType, Invalid } from './types.ts';

/** The codes of this package. README.md says what to do after each. */
type OwnCode =
  | 'api_key_unusable'
  | 'base_url_unusable'
  | 'max_credits'
  | 'max_credits_invalid'
  | 'not_the_api'
  | 'npi_invalid'
  | 'option_invalid'
  | 'state_expired'
  | 'state_locked'
  | 'state_mismatch'
  | 'state_unreadable'
  | 'timed_out'
  | 'unreachable'
  | 'webhook_unverified';

/**
 * The code of an error: one of the API's codes, the type of the first fault of a 422, one of this
 * package's codes, or `http_` and the status if the response is not from the API.
 */
export type ErrorCode = AnyProblem['code'] | FaultType | OwnCode | `http_${number}`;

/** An error from the API or from this package. Its `code` is stable. */
export class EnrichmentError extends Error {
  override readonly name = 'EnrichmentError';
  readonly code: ErrorCode;
  /**
   * The response, or null if the service sent none. When you contact support, quote the
   * `X-Request-Id` header.
   */
  readonly response: Response | null;
  /** The body of the response, if it is an error body of the API. */
  readonly problem: AnyProblem | Invalid | null;

  constructor(code: ErrorCode, message: string, more: Partial<EnrichmentError> = {}) {
    super(message, { cause: more.cause });
    this.code = code;
    this.response = more.response ?? null;
    this.problem = more.problem ?? null;
  }
}
