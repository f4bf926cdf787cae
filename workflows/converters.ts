import {
  DefaultFailureConverter,
  defaultPayloadConverter,
  type Payload,
} from '@temporalio/common';

// Converters for the values and failures in Temporal histories. The SDK requires the export names
// `payloadConverter` and `failureConverter`.

/**
 * Decodes a malformed payload to undefined, because a malformed signal must not stop the workflow
 * that receives it.
 */
export const payloadConverter = {
  toPayload: (value: unknown) => defaultPayloadConverter.toPayload(value),
  fromPayload(payload: Payload): unknown {
    try {
      return defaultPayloadConverter.fromPayload(payload);
    } catch {
      return undefined;
    }
  },
};

/**
 * Removes stack traces from failures, because everyone with access to the Temporal UI can read
 * histories, and a stack trace shows folder names of the worker's machine.
 */
class FailureConverter extends DefaultFailureConverter {
  override errorToFailure(
    ...args: Parameters<DefaultFailureConverter['errorToFailure']>
  ) {
    return { ...super.errorToFailure(...args), stackTrace: '' };
  }
}

export const failureConverter = new FailureConverter();
