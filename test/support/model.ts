import { PRICES } from '../../db/accounts/credits.ts';
import type { LookupEnd } from '../../db/requests/settle.ts';
import type { SubmitRules } from '../../db/requests/submit.ts';
import type {
  EmailType,
  RequestedType,
  RequestStatus,
  SubmittedAs,
} from '../../db/words.ts';

// The rules of DECISIONS.md for credits, replays, and Idempotency-Keys, implemented again as simply
// as possible: no SQL, no locks, one call after the other. The model doesn't know how the service
// works.

const HOUR = 3_600_000;

/** Freshness differs from the replay window, so that a mix-up shows. */
export const MODEL_RULES: SubmitRules = {
  lookupTimeoutMs: HOUR / 4,
  freshnessMs: 21 * 24 * HOUR,
  replayMs: 30 * 24 * HOUR,
  idempotencyMs: 24 * HOUR,
};

/** One client's call. `name` also names the batch or key that it creates. */
export type Call = { readonly name: string } & (
  | {
      readonly kind: 'submit';
      readonly organization: number;
      /** Name of the API key that it is sent with. */
      readonly key: string;
      readonly submittedAs: SubmittedAs;
      readonly requestedType: RequestedType;
      readonly npis: readonly string[];
      readonly idempotencyKey: string | null;
    }
  | { readonly kind: 'begin'; readonly request: RequestName }
  | { readonly kind: 'settle'; readonly request: RequestName; readonly end: LookupEnd }
  | {
      readonly kind: 'store';
      readonly npi: string;
      readonly emailType: EmailType;
      readonly email: string;
      readonly ageMs: number;
    }
  | {
      readonly kind: 'grant' | 'adjust';
      readonly organization: number;
      readonly amount: number;
    }
  | { readonly kind: 'rotate'; readonly organization: number; readonly key: string }
);

export type SubmitCall = Extract<Call, { kind: 'submit' }>;

export interface RequestName {
  readonly batch: string;
  readonly position: number;
}

interface KnownAddress {
  readonly npi: string;
  readonly email: string;
  readonly emailType: EmailType;
  /** Time of the validation (in the directory) or of the charge (in an organization). */
  readonly at: number;
}

interface ModelRequest {
  readonly npi: string;
  status: RequestStatus;
  replayed: boolean;
  credits: number;
  email: string | null;
}

interface ModelBatch {
  readonly organization: number;
  readonly requestedType: RequestedType;
  readonly deadline: number;
  readonly requests: ModelRequest[];
}

interface ModelOrganization {
  available: number;
  held: number;
  used: number;
  /** Names of its valid keys. The last one is the newest. */
  keys: string[];
  charges: (KnownAddress & { readonly request: string })[];
  /** Stored responses, by kind of submit and Idempotency-Key. */
  replies: Record<
    string,
    { readonly meaning: string; readonly batch: string; readonly until: number }
  >;
}

/** Plain data, so that it can be copied. */
export interface ModelState {
  now: number;
  calls: number;
  directory: KnownAddress[];
  organizations: ModelOrganization[];
  batches: Record<string, ModelBatch>;
  /** Every submit with an Idempotency-Key, so that it can be repeated. */
  repeatable: SubmitCall[];
}

export function openModel(credits: readonly number[]): ModelState {
  const organizations = credits.map((available, index) => {
    return {
      available,
      held: 0,
      used: 0,
      keys: [`key ${index}`],
      charges: [],
      replies: {},
    };
  });
  return { now: 0, calls: 0, directory: [], organizations, batches: {}, repeatable: [] };
}

/** Performs one call on the model and returns the caller's result. */
export function applyCall(state: ModelState, call: Call): string {
  switch (call.kind) {
    case 'submit':
      return submit(state, call);
    case 'begin': {
      const { request } = find(state, call.request);
      if (request.status === 'accepted') request.status = 'in-progress';
      return 'begun';
    }
    case 'settle':
      return settle(state, call.request, call.end);
    case 'store': {
      const { npi, email, emailType } = call;
      state.directory = state.directory.filter(
        (known) => known.npi !== npi || known.email !== email,
      );
      state.directory.push({ npi, email, emailType, at: state.now - call.ageMs });
      return 'stored';
    }
    case 'grant':
    case 'adjust': {
      const organization = organizationOf(state, call.organization);
      if (organization.available + call.amount < 0) return 'credits_below_zero';
      organization.available += call.amount;
      return 'funded';
    }
    case 'rotate': {
      const organization = organizationOf(state, call.organization);
      if (!organization.keys.includes(call.key)) return 'key_not_active';
      organization.keys = [
        ...organization.keys.filter((key) => key !== call.key),
        call.name,
      ];
      return 'rotated';
    }
    default:
      return call satisfies never;
  }
}

function submit(state: ModelState, call: SubmitCall): string {
  const { name, npis, requestedType, submittedAs, idempotencyKey } = call;
  const organization = organizationOf(state, call.organization);
  if (!organization.keys.includes(call.key)) return 'inactive';
  const meaning = meaningOf(call);
  const reply = organization.replies[`${submittedAs} ${idempotencyKey}`];
  if (idempotencyKey !== null && reply && reply.until > state.now) {
    return reply.meaning === meaning ? `repeated ${reply.batch}` : 'mismatch';
  }

  const after = structuredClone(organization);
  const requests = npis.map((npi, position): ModelRequest => {
    const free = replayFor(state, after, npi, requestedType);
    if (free)
      return { npi, status: 'completed', replayed: true, credits: 0, email: free.email };
    const price = PRICES[requestedType];
    after.available -= price;
    const stored = storedFor(state, npi, requestedType);
    if (!stored) {
      after.held += price;
      return { npi, status: 'accepted', replayed: false, credits: 0, email: null };
    }
    after.used += price;
    after.charges.push({ ...stored, at: state.now, request: `${name} ${position}` });
    return {
      npi,
      status: 'completed',
      replayed: false,
      credits: price,
      email: stored.email,
    };
  });
  if (after.available < 0) {
    return `insufficient ${organization.available - after.available} of ${organization.available}`;
  }
  if (idempotencyKey !== null) {
    const until = state.now + MODEL_RULES.idempotencyMs;
    after.replies[`${submittedAs} ${idempotencyKey}`] = { meaning, batch: name, until };
    state.repeatable.push(call);
  }
  state.organizations[call.organization] = after;
  const deadline = state.now + MODEL_RULES.lookupTimeoutMs;
  state.batches[name] = {
    organization: call.organization,
    requestedType,
    deadline,
    requests,
  };
  return `accepted ${requests.every(({ status }) => status === 'completed') ? 'completed' : 'in-progress'}`;
}

function settle(state: ModelState, requestName: RequestName, end: LookupEnd): string {
  const { batch, request } = find(state, requestName);
  if (request.status !== 'accepted' && request.status !== 'in-progress')
    return `${request.status} before`;
  const organization = organizationOf(state, batch.organization);
  const price = PRICES[batch.requestedType];
  organization.held -= price;
  const free = replayFor(state, organization, request.npi, batch.requestedType);
  const stored = storedFor(state, request.npi, batch.requestedType);
  if (end === 'failed' || state.now > batch.deadline) {
    organization.available += price;
    request.status = 'failed';
  } else if (free) {
    organization.available += price;
    Object.assign(request, { status: 'completed', replayed: true, email: free.email });
  } else if (stored) {
    organization.used += price;
    organization.charges.push({
      ...stored,
      at: state.now,
      request: `${requestName.batch} ${requestName.position}`,
    });
    Object.assign(request, { status: 'completed', credits: price, email: stored.email });
  } else {
    organization.available += price;
    request.status = 'not_found';
  }
  return `${request.status} now`;
}

function replayFor(
  state: ModelState,
  { charges }: ModelOrganization,
  npi: string,
  requestedType: RequestedType,
) {
  return best(charges, npi, requestedType, state.now - MODEL_RULES.replayMs);
}

function storedFor(state: ModelState, npi: string, requestedType: RequestedType) {
  return best(state.directory, npi, requestedType, state.now - MODEL_RULES.freshnessMs);
}

/** Returns the best address: professional before personal, then the newest. */
function best<T extends KnownAddress>(
  known: readonly T[],
  npi: string,
  requestedType: RequestedType,
  since: number,
) {
  return known
    .filter((one) => one.npi === npi && one.at >= since)
    .filter(({ emailType }) => requestedType === 'any' || requestedType === emailType)
    .sort(byTypeAndAge)
    .at(0);
}

function byTypeAndAge(a: KnownAddress, b: KnownAddress): number {
  if (a.emailType === b.emailType) return b.at - a.at;
  return a.emailType === 'professional' ? -1 : 1;
}

/** Returns the same text for two bodies with the same meaning. */
export function meaningOf({ npis, requestedType }: SubmitCall): string {
  return JSON.stringify([npis, requestedType]);
}

function find(state: ModelState, { batch: name, position }: RequestName) {
  const batch = state.batches[name];
  const request = batch?.requests[position];
  if (!batch || !request)
    throw new Error(`the model knows no request ${name} ${position}`);
  return { batch, request };
}

function organizationOf({ organizations }: ModelState, index: number): ModelOrganization {
  const organization = organizations[index];
  if (!organization) throw new Error(`the model knows no organization ${index}`);
  return organization;
}
