import type { RegistryProvider } from '../../db/providers/providers.ts';
import { get, type HttpAnswer } from '../http/client.ts';
import { bodyOf, FieldError } from '../http/fields.ts';
import { noAnswer, retryOfStatus } from '../vendors/steps.ts';
import type { RetryReason } from '../vendors/vendor.ts';
import { readRegistryAnswer } from './registry-answer.ts';

export interface RegistryOptions {
  /** Such as https://npiregistry.cms.hhs.gov/api/. */
  readonly baseUrl: string;
  readonly timeoutMs?: number;
}

/**
 * What the registry made of one question.
 * - `found`: an active NPI
 * - `inactive_or_unknown`: it does not show one; a deactivated NPI and one never assigned look alike here
 * - `retry`: not answered, for the same reasons as a vendor; the same question may be asked again after `afterMs` (null:
 *   our own backoff), at no cost
 * - `fatal`: the answer is not as documented; `field` names where, never a value
 */
export type RegistryStep =
  | { readonly kind: 'found'; readonly provider: RegistryProvider }
  | { readonly kind: 'inactive_or_unknown' }
  | {
      readonly kind: 'retry';
      readonly why: RetryReason;
      readonly afterMs: number | null;
    }
  | { readonly kind: 'fatal'; readonly why: 'protocol'; readonly field: string };

export interface Registry {
  /** @param npi 10 digits */
  find(npi: string, signal: AbortSignal): Promise<RegistryStep>;
}

/** It answers within a second or is in trouble. */
const TIMEOUT_MS = 10_000;

/**
 * The public NPI Registry API, version 2.1 (npiregistry.cms.hhs.gov/api-page): who an NPI is where no import has it.
 * It publishes no limits; whoever calls keeps to at most 5 questions a second, 4 at once, and one a day for an NPI.
 * `find` throws only what aborting `signal` throws.
 */
export function createRegistry({ baseUrl, timeoutMs = TIMEOUT_MS }: RegistryOptions): Registry {
  const base = `${baseUrl.replace(/\/+$/, '')}/`;
  const headers = { accept: 'application/json', 'user-agent': 'npi-email-enrichment/1.0' };

  return {
    async find(npi, signal) {
      const query = new URLSearchParams({ version: '2.1', number: npi });
      const answer = await get(`${base}?${query}`, headers, signal, timeoutMs);
      return typeof answer === 'string' ? noAnswer(answer) : stepOf(answer, npi);
    },
  };
}

function stepOf(answer: HttpAnswer, npi: string): RegistryStep {
  if (answer.status === 200) return stepOfBody(answer, npi);
  return retryOfStatus(answer) ?? { kind: 'fatal', why: 'protocol', field: 'status' };
}

function stepOfBody({ text }: HttpAnswer, npi: string): RegistryStep {
  try {
    const provider = readRegistryAnswer(bodyOf(text), npi);
    return provider === null ? { kind: 'inactive_or_unknown' } : { kind: 'found', provider };
  } catch (error) {
    if (error instanceof FieldError) return { kind: 'fatal', why: 'protocol', field: error.field };
    throw error;
  }
}
