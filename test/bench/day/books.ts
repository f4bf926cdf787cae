import type { ReceiverKind } from './world.ts';

// The books of the customers: their habits, their requests, and the accepted batches and files.

/** How a customer gets its results: by polls, by polls that wait, or by webhooks in a mode. */
export const HABITS = ['polls', 'waits', 'real-time', 'batch'] as const;
type Habit = (typeof HABITS)[number];
export type RequestedType = 'any' | 'professional' | 'personal';

export interface Customer {
  /** The position by traffic, from 1. */
  readonly rank: number;
  readonly organizationId: string;
  readonly apiKey: string;
  readonly habit: Habit;
  readonly receiver: ReceiverKind;
  /** Its last order whose results it has seen. */
  earlier: Order | null;
}

export interface Order {
  readonly npis: readonly string[];
  readonly type: RequestedType;
}

/** A request to the API or the console. */
export interface Call {
  readonly kind: 'submit' | 'poll' | 'wait' | 'check' | 'console';
  /** Milliseconds since 1970. */
  readonly at: number;
  readonly ms: number;
  /** 0 without a response. */
  readonly status: number;
}

/** A batch that was accepted with a 202. */
export interface Accepted extends Order {
  readonly customer: Customer;
  /** The mode of its webhook, or null without one. */
  readonly mode: 'real-time' | 'batch' | null;
  readonly id: string;
  /** The ids of its requests. */
  readonly ids: readonly string[];
  /** When its customer had the response. */
  readonly at: number;
}

/** A file that was accepted in the console. */
export interface Upload {
  readonly customer: Customer;
  readonly npis: readonly string[];
  readonly id: string;
}

export class Books {
  readonly calls: Call[] = [];
  readonly accepted: Accepted[] = [];
  readonly uploads: Upload[] = [];
  /** Requests that a customer gave up. */
  readonly givenUp: string[] = [];
}
