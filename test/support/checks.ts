import {
  type Checked,
  type CheckOptions,
  createCheck,
} from '../../activities/verification/check.ts';
import { NOBODY_KNOWN, type Whose } from '../../activities/verification/local-part.ts';
import type { FinderWord, NamedCandidate } from '../../activities/verification/policy.ts';
import type {
  CheckedFor,
  Unavailable,
  Verifier,
  VerifierStep,
} from '../../activities/verification/verifiers/verifier.ts';

export const NOW = Date.UTC(2026, 10, 20);
export const DAY_MS = 86_400_000;
/** A check that belongs to no request and no lookup. */
export const FOR_NOBODY: CheckedFor = {
  signal: new AbortController().signal,
  requestId: null,
  renewTurn: null,
};

type Dns = CheckOptions['resolver'];

/** All words that a finder may return. */
export const FINDER_WORDS = Object.keys({
  ...{ valid: 0, stale: 0, undated: 0, catch_all: 0, risky: 0, invalid: 0, unknown: 0 },
  ...{ registry: 0, unclear: 0 },
} satisfies Record<FinderWord, 0>) as FinderWord[];

/**
 * Returns a resolver with a publicly reachable MX for every domain, except where the test overrides
 * it.
 */
export function resolver(replies: Partial<Dns> = {}): Dns {
  return {
    resolveMx: async () => [{ exchange: 'mx.example.net', priority: 10 }],
    resolve4: async () => ['198.41.0.4'],
    resolve6: async () => [],
    ...replies,
  };
}

/** Returns a DNS query that fails like one of node:dns. */
export function failure(code: string) {
  return async () => {
    throw Object.assign(new Error(`query ${code}`), { code });
  };
}

/** Returns an address that one vendor validated yesterday, except where the test overrides it. */
export function candidate(
  email: string,
  rest: Partial<NamedCandidate> = {},
): NamedCandidate {
  const yesterday = new Date(NOW - DAY_MS);
  return {
    email,
    vendorType: null,
    verdict: 'valid',
    validatedAt: yesterday,
    source: 'vendor',
    namedBy: 1,
    isTypedDirect: false,
    repeatsInput: false,
    begunAt: NOW,
    lastVerdict: null,
    undecided: {},
    ...rest,
  };
}

/** Returns the check in its default configuration, except where the test overrides it. */
export function checkOf({
  signal = FOR_NOBODY.signal,
  ...options
}: Partial<CheckOptions> & { signal?: AbortSignal } = {}) {
  const check = createCheck({
    resolver: resolver(),
    dnsControl: async () => null,
    policy: 'vendor-or-verifier',
    catchAll: 'reject',
    freshnessMs: 30 * 86_400_000,
    verifiers: [],
    now: () => NOW,
    ...options,
  });
  const alone = { ...FOR_NOBODY, signal };
  return (one: NamedCandidate, whose: Whose = NOBODY_KNOWN, work: CheckedFor = alone) =>
    check(one, whose, work);
}

/** Returns the verdict and its reason in a few words. */
export function inWords(checked: Checked): string {
  return checked.kind === 'decided'
    ? `${checked.verdict} ${checked.reason}`
    : `${checked.kind} ${checked.reason}`;
}

/** A verifier with scripted responses that counts its calls. */
export interface ScriptedVerifier extends Verifier {
  readonly asked: () => number;
}

export function verifierOf(
  id: string,
  ...steps: readonly (VerifierStep | Unavailable)[]
): ScriptedVerifier {
  let asked = 0;
  return {
    id,
    cost: 1,
    async check() {
      const step = steps[Math.min(asked, steps.length - 1)];
      asked += 1;
      if (step === undefined) throw new Error('a verifier without a step');
      return { ...step, durationMs: 1, waitedMs: 0 };
    },
    asked: () => asked,
  };
}
