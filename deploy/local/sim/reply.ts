import type { IncomingHttpHeaders } from 'node:http';

/** One answer of a simulated vendor; `latencyMs` before the speed factor, `hang` means that none is ever sent. */
export type Reply =
  | {
      readonly kind: 'answer';
      readonly latencyMs: number;
      readonly status: number;
      readonly headers: Readonly<Record<string, string>>;
      readonly body: unknown;
    }
  | { readonly kind: 'hang' };

/** A question as it reaches one vendor. */
export interface SimRequest {
  readonly method: string;
  /** Below the vendor's base URL, such as `/person/lookup`. */
  readonly path: string;
  readonly query: URLSearchParams;
  readonly headers: IncomingHttpHeaders;
  readonly body: string;
}

/** What is noted of a question: `operation` such as `lookup` or `poll`, and whom or what it was about. */
export interface Answered {
  readonly operation: string;
  readonly subject: string;
  readonly reply: Reply;
}

/** A vendor, verifier or registry in its own wire format, without sockets. */
export interface VendorSim {
  /** As the adapter's id; also the first part of its path in the simulator. */
  readonly id: string;
  answer(request: SimRequest): Answered;
  /** Forgets how far each conversation is. */
  reset(): void;
}
