import { answer, HANG, onceEach, type SimOptions, turnedAway } from './answer.ts';
import { type Behaviour, ordinaryBehaviour, type SimulatedEmail, type Unfinished } from './behaviours.ts';
import { MAGIC } from './magic.ts';
import { personOf } from './people.ts';
import type { Reply, VendorSim } from './reply.ts';

// RocketReach's wire format, version 2, as its OpenAPI gives it: GET /person/lookup by NPI and /person/checkStatus,
// and the same with universal credits, which shows only what `reveal_…` asks for.

type Found = Extract<Behaviour, { kind: 'profile' }>;

/** Profile ids give the NPI back, so that a restarted simulator still knows the lookups it was asked for. */
const ID_OFFSET = 10_000_000_000;
const POLL_LATENCY_MS = 100;
const POLL_SECONDS = 3;
const MAX_IDS = 100;
const VALIDATED_AGO_MS = 3_600_000;
const NO_PROFILE = 'The requested resource does not exist.';

/** Operations in the log: `lookup` about an NPI, which is charged, and `checkStatus` about ids. */
export function createRocketReachSim({ apiKey, speed }: SimOptions): VendorSim {
  /** How many answers each unfinished NPI has had. */
  const steps = new Map<string, number>();
  /** What the last lookup of an NPI with universal credits asked for. */
  const revealed = new Map<string, Revealed>();
  const limits = onceEach();

  function lookup(query: URLSearchParams, universal: boolean): Reply {
    const npi = query.get('npi_number') ?? '';
    if (!/^[0-9]{10}$/.test(npi)) return problem(400, 'npi_number is required.');
    const reveal = universal ? revealedBy(query) : EVERYTHING;
    if (reveal.types.length === 0) return problem(400, 'At least one enrichment type is required.');
    revealed.set(npi, reveal);
    const behaviour = behaviourOf(npi);
    switch (behaviour.kind) {
      case 'hang':
        return HANG;
      case 'refusal': {
        const message = behaviour.status === 404 ? NO_PROFILE : 'Unexpected error.';
        return problem(behaviour.status, message, { latencyMs: behaviour.latencyMs });
      }
      case 'limited_once':
        if (limits.first(npi))
          return problem(429, 'Request was throttled.', { headers: { 'retry-after': '1' } });
        return answer(200, show(npi, behaviour.profile, query), { latencyMs: behaviour.profile.latencyMs });
      case 'profile':
        return answer(200, show(npi, behaviour, query), { latencyMs: behaviour.latencyMs });
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
    if (profiles.length === 0) return problem(404, NO_PROFILE);
    return answer(200, profiles, { latencyMs: POLL_LATENCY_MS });
  }

  function show(npi: string, found: Found, query: URLSearchParams) {
    const step = steps.get(npi) ?? 0;
    steps.set(npi, step + 1);
    const status = found.unfinished[step] ?? 'complete';
    const cached = query.get('return_cached_emails') === 'true';
    const { types, npiData } = revealed.get(npi) ?? EVERYTHING;
    const shown = { ...found, emails: found.emails.filter(({ type }) => types.includes(type)) };
    const { npi_data, ...rest } = profileBody(npi, shown, status, cached, POLL_SECONDS / speed);
    return npiData ? { ...rest, npi_data } : rest;
  }

  return {
    id: 'rocketreach',
    answer({ method, path, query, headers }) {
      if (headers['api-key'] !== apiKey) return turnedAway(problem(401, 'Invalid API Key'));
      if (method !== 'GET') return turnedAway(problem(405, 'Method not allowed.'));
      switch (path) {
        case '/person/lookup':
        case '/universal/person/lookup': {
          const reply = lookup(query, path.startsWith('/universal/'));
          return { operation: 'lookup', subject: query.get('npi_number') ?? '', reply };
        }
        case '/person/checkStatus':
        case '/universal/person/check_status':
          return { operation: 'checkStatus', subject: query.get('ids') ?? '', reply: checkStatus(query) };
        default:
          return turnedAway(problem(404, 'Not found.'));
      }
    },
    reset() {
      steps.clear();
      revealed.clear();
      limits.reset();
    },
  };
}

/** What of a profile is shown. */
interface Revealed {
  readonly types: readonly SimulatedEmail['type'][];
  readonly npiData: boolean;
}

const EVERYTHING: Revealed = { types: ['professional', 'personal'], npiData: true };

function revealedBy(query: URLSearchParams): Revealed {
  const asks = (what: string) => query.get(`reveal_${what}`) === 'true';
  const types = EVERYTHING.types.filter((type) => asks(`${type}_email`));
  return { types, npiData: asks('healthcare_enrichment') };
}

/** The vendor's flat error envelope. */
function problem(status: number, message: string, rest: Parameters<typeof answer>[2] = {}): Reply {
  return answer(status, { status, message }, rest);
}

function behaviourOf(npi: string): Behaviour {
  return MAGIC.get(npi)?.rocketreach ?? ordinaryBehaviour(npi);
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
  const { credential, organization } = personOf(npi);
  const { city, state } = organization.address;
  return {
    id: Number(npi) + ID_OFFSET,
    status,
    name: found.name,
    linkedin_url: null,
    location: `${city}, ${state}, United States`,
    city,
    region: state,
    country: 'United States',
    country_code: 'US',
    current_title: 'Physician',
    current_employer: organization.dba ?? organization.name,
    current_employer_domain: organization.domain,
    npi_data: {
      npi_number: found.npi,
      credentials: credential,
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
