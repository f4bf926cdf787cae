import type { RegistryProvider } from '../db/providers.ts';
import { bodyOf, FieldError } from './providers/fields.ts';
import { get, type HttpAnswer, retryAfterMs } from './providers/http.ts';
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
 * - `retry`: not answered; the same question may be asked again after `afterMs` (null: our own backoff)
 * - `fatal`: the answer is not as documented; `field` names where, never a value
 */
export type RegistryStep =
  | { readonly kind: 'found'; readonly provider: RegistryProvider }
  | { readonly kind: 'inactive_or_unknown' }
  | {
      readonly kind: 'retry';
      readonly why: 'rate_limit' | 'upstream' | 'network';
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
      return answer === null ? { kind: 'retry', why: 'network', afterMs: null } : stepOf(answer, npi);
    },
  };
}

function stepOf(answer: HttpAnswer, npi: string): RegistryStep {
  const { status, headers } = answer;
  if (status === 200) return stepOfBody(answer, npi);
  if (status === 429) return { kind: 'retry', why: 'rate_limit', afterMs: retryAfterMs(headers) };
  if (status >= 500 || status === 408 || status === 425) {
    return { kind: 'retry', why: 'upstream', afterMs: retryAfterMs(headers) };
  }
  return { kind: 'fatal', why: 'protocol', field: 'status' };
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
