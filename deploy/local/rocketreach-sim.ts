import { MAGIC } from './magic.ts';
import {
  type Behaviour,
  ordinaryBehaviour,
  type SimulatedEmail,
  type Unfinished,
} from './simulator-people.ts';

// RocketReach's wire format, version 2, as its OpenAPI gives it: what one question is answered, without sockets.

/** One answer; `latencyMs` before the speed factor, `hang` means that none is ever sent. */
export type Reply =
  | {
      readonly kind: 'answer';
      readonly latencyMs: number;
      readonly status: number;
      readonly headers: Readonly<Record<string, string>>;
      readonly body: unknown;
    }
  | { readonly kind: 'hang' };

type Found = Extract<Behaviour, { kind: 'profile' }>;

/** Profile ids give the NPI back, so that a restarted simulator still knows the lookups it was asked for. */
const ID_OFFSET = 10_000_000_000;
const POLL_LATENCY_MS = 100;
const POLL_SECONDS = 3;
const MAX_IDS = 100;
const VALIDATED_AGO_MS = 3_600_000;

export interface RocketReachSim {
  lookup(query: URLSearchParams): Reply;
  checkStatus(query: URLSearchParams): Reply;
  reset(): void;
}

/** @param speed what the vendor's hint when to poll again is divided by */
export function createRocketReachSim(speed: number): RocketReachSim {
  /** How many answers each unfinished NPI has had, and which NPIs have been told to slow down. */
  const steps = new Map<string, number>();
  const limited = new Set<string>();

  function lookup(query: URLSearchParams): Reply {
    const npi = query.get('npi_number') ?? '';
    if (!/^[0-9]{10}$/.test(npi)) return problem(400, 'npi_number is required.');
    const behaviour = behaviourOf(npi);
    switch (behaviour.kind) {
      case 'hang':
        return behaviour;
      case 'refusal':
        return problem(behaviour.status, MESSAGES[behaviour.status], behaviour.latencyMs);
      case 'limited_once':
        if (limited.has(npi)) return answer(behaviour.profile.latencyMs, show(npi, behaviour.profile, query));
        limited.add(npi);
        return { ...problem(429, 'Request was throttled.'), headers: { 'retry-after': '1' } };
      case 'profile':
        return answer(behaviour.latencyMs, show(npi, behaviour, query));
    }
  }

  function checkStatus(query: URLSearchParams): Reply {
    const ids = query.getAll('ids').flatMap((value) => value.split(','));
    if (ids.length > MAX_IDS || ids.some((id) => !/^[0-9]+$/.test(id)))
      return problem(400, 'ids is malformed.');
    const profiles = ids.flatMap((id) => {
      const npi = String(Number(id) - ID_OFFSET).padStart(10, '0');
      const behaviour = behaviourOf(npi);
      const found = behaviour.kind === 'limited_once' ? behaviour.profile : behaviour;
      return found.kind === 'profile' && npi.length === 10 ? [show(npi, found, query)] : [];
    });
    return profiles.length === 0 ? problem(404, MESSAGES[404]) : answer(POLL_LATENCY_MS, profiles);
  }

  function show(npi: string, found: Found, query: URLSearchParams) {
    const step = steps.get(npi) ?? 0;
    steps.set(npi, step + 1);
    const status = found.unfinished[step] ?? 'complete';
    const cached = query.get('return_cached_emails') === 'true';
    return profileBody(npi, found, status, cached, POLL_SECONDS / speed);
  }

  return {
    lookup,
    checkStatus,
    reset() {
      steps.clear();
      limited.clear();
    },
  };
}

/** The vendor's flat error envelope. */
export function problem(status: number, message: string, latencyMs = 0): Extract<Reply, { kind: 'answer' }> {
  return { kind: 'answer', latencyMs, status, headers: {}, body: { status, message } };
}

const MESSAGES = {
  404: 'The requested resource does not exist.',
  451: 'This person has asked not to be processed.',
  500: 'Unexpected error.',
} as const;

function answer(latencyMs: number, body: unknown): Reply {
  return { kind: 'answer', latencyMs, status: 200, headers: {}, body };
}

function behaviourOf(npi: string): Behaviour {
  return MAGIC.get(npi)?.behaviour ?? ordinaryBehaviour(npi);
}

/** With `return_cached_emails=false` the email fields are null until the lookup is complete. */
function profileBody(
  npi: string,
  found: Found,
  status: Unfinished | 'complete',
  cached: boolean,
  retryAfterSeconds: number,
) {
  const complete = status === 'complete';
  const emails = complete || cached ? found.emails.map((email) => emailBody(email, complete)) : null;
  const recommended = (type: SimulatedEmail['type']) =>
    complete ? (found.emails.find((email) => email.type === type)?.email ?? null) : null;
  return {
    id: Number(npi) + ID_OFFSET,
    status,
    name: nameOf(found),
    linkedin_url: null,
    location: null,
    current_title: 'Physician',
    current_employer: null,
    country_code: 'US',
    npi_data: {
      npi_number: found.npi,
      credentials: 'MD',
      license_number: 'SIM-0',
      specialization: 'Family Medicine',
    },
    return_cached_emails: cached,
    recommended_email: recommended('professional') ?? recommended('personal'),
    recommended_personal_email: recommended('personal'),
    recommended_professional_email: recommended('professional'),
    emails,
    phones: [],
    ...(complete ? {} : { retry_after_seconds: retryAfterSeconds }),
  };
}

function emailBody({ email, type, smtpValid, grade }: SimulatedEmail, complete: boolean) {
  return {
    email,
    smtp_valid: complete ? smtpValid : 'inconclusive',
    type,
    last_validation_check: complete ? new Date(Date.now() - VALIDATED_AGO_MS).toISOString() : null,
    grade,
  };
}

function nameOf({ emails }: Found): string {
  const local = emails[0]?.email.split('@')[0] ?? '';
  return local
    .split('.')
    .map((part) => part.charAt(0).toUpperCase() + part.slice(1))
    .join(' ');
}
